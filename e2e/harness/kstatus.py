"""What must be true of a serving's status at any time: kstatus' rules, and those of this API beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from duplex_operator.api import ConditionType, Reason

_ABNORMAL_TRUE = {ConditionType.RECONCILING, ConditionType.STALLED}
_ALWAYS = set(ConditionType) - _ABNORMAL_TRUE


def broken_rules(serving: Mapping[str, Any], status: Mapping[str, Any]) -> list[str]:
    """Return each rule that a status breaks, in words. `serving` is the object that it is to be, or was, written to.

    A reader who knows only kstatus must not be misled: an object is current, in progress (Reconciling) or failed
    (Stalled), and one that is not Ready says which of the latter two it is.
    """
    conditions = list(status.get("conditions") or ())
    return [
        *_each(conditions, status),
        *_together({one["type"]: one for one in conditions}, serving, status),
        *_transitions(conditions, (serving.get("status") or {}).get("conditions") or ()),
    ]


def _each(conditions: list[dict[str, Any]], status: Mapping[str, Any]) -> Iterator[str]:
    types = [one["type"] for one in conditions]
    if len(types) != len(set(types)):
        yield f"a condition stands twice: {types}"
    for one in conditions:
        if one["type"] not in set(ConditionType) or one["reason"] not in set(Reason):
            yield f"{one['type']}/{one['reason']} is not of the closed lists"
        if not one.get("message"):
            yield f"{one['type']} has no message"
        if one["type"] in _ABNORMAL_TRUE and one["status"] != "True":
            yield f"{one['type']} must vanish when it does not hold"
        if one.get("observedGeneration") != status.get("observedGeneration"):
            yield f"{one['type']} is about another generation than the status"


def _together(
    by_type: Mapping[str, dict[str, Any]], serving: Mapping[str, Any], status: Mapping[str, Any]
) -> Iterator[str]:
    missing = _ALWAYS - by_type.keys()
    if missing:
        yield f"conditions are missing: {sorted(missing)}"
    if by_type.keys() >= _ABNORMAL_TRUE:
        yield "Reconciling and Stalled at once: it cannot be both under way and at its end"
    if (status.get("observedGeneration") or 0) > serving["metadata"].get("generation", 0):
        yield "observedGeneration is ahead of the object"
    ready = by_type.get(ConditionType.READY, {})
    at_rest = not by_type.keys() & _ABNORMAL_TRUE
    if at_rest and ready.get("status") != "True" and ready.get("reason") != Reason.SUSPENDED:
        yield f"not Ready ({ready.get('reason')}), and neither Reconciling nor Stalled says what is to come"
    if at_rest and by_type.get(ConditionType.PROGRESSING, {}).get("status") == "False":
        yield "Progressing is False, and neither Reconciling nor Stalled is there"


def _transitions(conditions: list[dict[str, Any]], former: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    before = {one["type"]: one for one in former}
    for one in conditions:
        old = before.get(one["type"])
        same = old is not None and old["status"] == one["status"]
        if same and old is not None and old["lastTransitionTime"] != one["lastTransitionTime"]:
            yield f"{one['type']} did not change and has a new lastTransitionTime"
