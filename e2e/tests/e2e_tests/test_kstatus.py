"""The rules of a status are rules: each is broken here once, and seen."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from harness.kstatus import broken_rules

TIME = "2026-01-01T00:00:00Z"


def condition(kind: str, status: str, reason: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "why",
        "observedGeneration": 2,
        "lastTransitionTime": TIME,
    }


def a_status() -> dict[str, Any]:
    return {
        "observedGeneration": 2,
        "conditions": [
            condition("Ready", "True", "Serving"),
            condition("PrefillReady", "True", "PodsReady"),
            condition("DecodeReady", "True", "PodsReady"),
            condition("RouterReady", "True", "PodsReady"),
            condition("TransportVerified", "True", "TransportObserved"),
            condition("ReuseEffective", "Unknown", "NoTraffic"),
            condition("Progressing", "True", "RolledOut"),
        ],
    }


SERVING = {"metadata": {"generation": 2}, "status": a_status()}


def test_a_status_at_rest_breaks_none() -> None:
    assert broken_rules(SERVING, a_status()) == []
    assert broken_rules({"metadata": {"generation": 2}}, a_status()) == []


def _set(of: dict[str, Any], kind: str, **changes: Any) -> None:
    next(one for one in of["conditions"] if one["type"] == kind).update(changes)


BREAKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "stands twice": lambda s: s["conditions"].append(s["conditions"][0]),
    "closed lists": lambda s: _set(s, "Ready", reason="Splendid"),
    "no message": lambda s: _set(s, "Ready", message=""),
    "must vanish": lambda s: s["conditions"].append(condition("Stalled", "False", "Serving")),
    "another generation": lambda s: _set(s, "Ready", observedGeneration=1),
    "are missing": lambda s: s["conditions"].pop(),
    "at once": lambda s: s["conditions"].extend(
        [condition("Stalled", "True", "InvalidSpec"), condition("Reconciling", "True", "Progressing")]
    ),
    "ahead of the object": lambda s: s.update(observedGeneration=3),
    "neither Reconciling nor Stalled says": lambda s: _set(s, "Ready", status="False", reason="CrashLoop"),
    "Progressing is False": lambda s: _set(s, "Progressing", status="False", reason="CrashLoop"),
    "new lastTransitionTime": lambda s: _set(s, "Ready", lastTransitionTime="2026-01-02T00:00:00Z"),
}


@pytest.mark.parametrize("words", BREAKS)
def test_each_rule_is_seen_to_be_broken(words: str) -> None:
    status = copy.deepcopy(a_status())
    BREAKS[words](status)
    assert any(words in rule for rule in broken_rules(SERVING, status))
