"""How many tokens a request loads, and what it reports."""

from __future__ import annotations

from duplex_connector.contract import Duplex
from duplex_connector.handle import Instructions
from duplex_connector.proof import Decision, Outcome, Reason
from duplex_connector.turn import Turn

FULL = Decision(Outcome.FULL, Reason.EMPTY, proved=739, tokens=739, block_ids=[list(range(24))])


def turn(decision: Decision | None = FULL, *, threshold: int | None = None, is_hand_off: bool = False) -> Turn:
    return Turn(Instructions(threshold=threshold), decision, is_hand_off)


def test_what_is_missing_is_loaded() -> None:
    assert turn().tokens_to_load(480, default_threshold=64) == 259


def test_a_cold_request_loads_nothing() -> None:
    cold = turn(None)
    assert cold.tokens_to_load(0, default_threshold=0) == 0
    assert cold.report(100) == {
        Duplex.PROVED: 0,
        Duplex.PULLED: 0,
        Duplex.LOCAL: 0,
        Duplex.COMPUTED: 100,
        Duplex.OUTCOME: "none",
        Duplex.REASON: "",
    }


def test_a_local_hit_needs_no_load() -> None:
    known = turn()
    assert known.tokens_to_load(739, default_threshold=0) == 0
    assert known.reason is Reason.LOCAL


def test_the_requests_threshold_wins_over_the_engines() -> None:
    assert turn(threshold=259).tokens_to_load(480, default_threshold=1000) == 259
    strict = turn(threshold=260)
    assert strict.tokens_to_load(480, default_threshold=0) == 0
    assert strict.reason is Reason.BELOW_THRESHOLD
    assert turn().tokens_to_load(480, default_threshold=260) == 0


def test_a_hand_off_knows_no_threshold() -> None:
    assert turn(threshold=1000, is_hand_off=True).tokens_to_load(0, default_threshold=1000) == 739


def test_asking_again_before_admission_changes_nothing() -> None:
    waiting = turn()
    assert waiting.tokens_to_load(0, default_threshold=0) == 739
    assert waiting.tokens_to_load(0, default_threshold=0) == 739
    assert waiting.reason is Reason.EMPTY


def test_after_a_failed_load_the_engine_computes() -> None:
    unlucky = turn()
    unlucky.tokens_to_load(0, default_threshold=0)
    unlucky.admit(739)
    unlucky.failed = True
    assert unlucky.tokens_to_load(0, default_threshold=0) == 0
    unlucky.admit(0)
    report = unlucky.report(800)
    assert (report[Duplex.PULLED], report[Duplex.COMPUTED], report[Duplex.REASON]) == (0, 800, "pull-failed")
    assert not unlucky.delivered_pull


def test_after_a_preemption_the_engine_computes() -> None:
    preempted = turn()
    preempted.tokens_to_load(0, default_threshold=0)
    preempted.admit(739)
    assert preempted.tokens_to_load(64, default_threshold=0) == 0
    assert preempted.reason is Reason.PREEMPTED
    assert preempted.report(800)[Duplex.COMPUTED] == 736


def test_the_report_adds_up() -> None:
    done = turn()
    done.admit(done.tokens_to_load(480, default_threshold=0))
    report = done.report(830)
    assert (report[Duplex.LOCAL], report[Duplex.PULLED], report[Duplex.COMPUTED]) == (480, 259, 91)
    assert done.delivered_pull


def test_a_hand_off_is_no_pull() -> None:
    handed = turn(is_hand_off=True)
    handed.admit(handed.tokens_to_load(0, default_threshold=0))
    assert not handed.delivered_pull


def test_what_vllm_does_not_load_is_not_reported_as_pulled() -> None:
    # Prompt log-probabilities make vLLM skip every cached token, whatever the connector offers.
    skipped = turn()
    skipped.tokens_to_load(0, default_threshold=0)
    skipped.admit(0)
    assert skipped.report(800)[Duplex.PULLED] == 0
