"""Conditions follow the API's rules, and events tell transitions and nothing else."""

from duplex_operator.api import ConditionType, Reason
from duplex_operator.plan.conditions import Draft, merge_conditions, transitions

T1, T2 = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def ready(holds: bool | None, reason: Reason = Reason.SERVING, message: str = "m") -> Draft:  # noqa: FBT001 - a value
    return Draft(ConditionType.READY, holds, reason, message)


def test_the_transition_time_moves_only_when_the_status_flips() -> None:
    first = merge_conditions([], [ready(None, Reason.UNKNOWN)], 1, T1)
    same = merge_conditions(first, [ready(None, Reason.NO_TRAFFIC, "other words")], 2, T2)
    assert (same[0]["lastTransitionTime"], same[0]["reason"], same[0]["observedGeneration"]) == (T1, "NoTraffic", 2)
    flipped = merge_conditions(same, [ready(True)], 2, T2)
    assert (flipped[0]["status"], flipped[0]["lastTransitionTime"]) == ("True", T2)


def test_abnormal_conditions_vanish_when_they_do_not_hold() -> None:
    stalled = Draft(ConditionType.STALLED, True, Reason.INVALID_SPEC, "m")
    assert [c["type"] for c in merge_conditions([], [stalled, ready(False)], 1, T1)] == ["Ready", "Stalled"]
    gone = Draft(ConditionType.STALLED, False, Reason.INVALID_SPEC, "m")
    assert [c["type"] for c in merge_conditions([], [gone, ready(False)], 1, T1)] == ["Ready"]


def test_an_event_for_a_transition_and_none_for_the_same_again() -> None:
    before = merge_conditions([], [ready(False, Reason.WAITING_FOR_PODS)], 1, T1)
    after = merge_conditions(before, [ready(True)], 1, T2)
    assert [(event.warning, event.reason) for event in transitions(before, after)] == [(False, "Serving")]
    assert transitions(after, merge_conditions(after, [ready(True, message="other")], 1, T2)) == []


def test_one_cause_in_two_conditions_is_one_warning() -> None:
    crash = [
        ready(False, Reason.CRASH_LOOP, "it crashed"),
        Draft(ConditionType.DECODE_READY, False, Reason.CRASH_LOOP, "it crashed"),
    ]
    events = transitions([], merge_conditions([], crash, 1, T1))
    assert [(event.warning, event.reason) for event in events] == [(True, "CrashLoop")]


def test_the_ordinary_way_up_is_not_told_step_by_step() -> None:
    waiting = [
        ready(False, Reason.MODEL_LOADING),
        Draft(ConditionType.TRANSPORT_VERIFIED, None, Reason.NO_TRAFFIC, "m"),
    ]
    assert transitions([], merge_conditions([], waiting, 1, T1)) == []


def test_stalled_is_a_warning_although_it_is_true() -> None:
    stalled = merge_conditions([], [Draft(ConditionType.STALLED, True, Reason.INVALID_SPEC, "m")], 1, T1)
    assert [event.warning for event in transitions([], stalled)] == [True]
