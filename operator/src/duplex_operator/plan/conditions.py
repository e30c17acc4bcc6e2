"""Conditions: observations with a closed list of reasons, merged over the former ones by the rules of the API."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from duplex_operator.api import ConditionType, Reason

_ABNORMAL_TRUE: Final = frozenset({ConditionType.RECONCILING, ConditionType.STALLED})
"""Present only while True (kstatus)."""

_LONGEST_MESSAGE: Final = 2000


@dataclass(frozen=True, slots=True)
class Draft:
    """A condition without what is the same for all. ``holds`` None is Unknown."""

    type: ConditionType
    holds: bool | None
    reason: Reason
    message: str

    @property
    def status(self) -> str:
        """The word of the API."""
        return "Unknown" if self.holds is None else str(self.holds)


def merge_conditions(
    former: Sequence[dict[str, Any]], drafts: Iterable[Draft], generation: int, now: str
) -> list[dict[str, Any]]:
    """Return the conditions to write, in the order of ``ConditionType``.

    ``lastTransitionTime`` is kept while the status stays the same. Abnormal-true conditions that do not hold are left
    out, and so vanish.
    """
    times = {(one["type"], one["status"]): one["lastTransitionTime"] for one in former}
    order = list(ConditionType)
    kept = [draft for draft in drafts if draft.holds or draft.type not in _ABNORMAL_TRUE]
    return [
        {
            "type": draft.type.value,
            "status": draft.status,
            "observedGeneration": generation,
            "lastTransitionTime": times.get((draft.type.value, draft.status), now),
            "reason": draft.reason.value,
            "message": draft.message[:_LONGEST_MESSAGE],
        }
        for draft in sorted(kept, key=lambda draft: order.index(draft.type))
    ]


@dataclass(frozen=True, slots=True)
class EventDraft:
    """An event to post about the serving. ``warning`` tells Warning from Normal."""

    warning: bool
    reason: str
    message: str


_TOLD: Final = (
    ConditionType.READY,
    ConditionType.PREFILL_READY,
    ConditionType.DECODE_READY,
    ConditionType.ROUTER_READY,
    ConditionType.TRANSPORT_VERIFIED,
    ConditionType.REUSE_EFFECTIVE,
    ConditionType.PROGRESSING,
    ConditionType.STALLED,
)
"""Conditions whose changes are told. Reconciling says the same as Progressing."""

_QUIET: Final = frozenset(
    {
        Reason.WAITING_FOR_PODS,
        Reason.WAITING_FOR_ROUTER,
        Reason.WAITING_FOR_CANARY,
        Reason.MODEL_LOADING,
        Reason.NO_TRAFFIC,
        Reason.UNKNOWN,
        Reason.REUSE_DISABLED,
        Reason.PODS_READY,
    }
)
"""Reasons on the ordinary way up, which nobody needs to be told of one by one."""


def transitions(former: Sequence[dict[str, Any]], present: Sequence[dict[str, Any]]) -> list[EventDraft]:
    """Return an event for each condition whose status or reason changed to something worth telling, each once.

    One cause that several conditions report (a crash shows in PrefillReady and in Ready) is told once.
    """
    before = {one["type"]: (one["status"], one["reason"]) for one in former}
    events: dict[str, EventDraft] = {}
    for one in present:
        if one["type"] not in _TOLD or before.get(one["type"]) == (one["status"], one["reason"]):
            continue
        if one["reason"] in _QUIET or one["status"] == "Unknown":
            continue
        bad = one["status"] == ("True" if one["type"] in _ABNORMAL_TRUE else "False")
        warning = bad and one["reason"] != Reason.SUSPENDED
        events.setdefault(one["reason"], EventDraft(warning, one["reason"], one["message"]))
    return list(events.values())
