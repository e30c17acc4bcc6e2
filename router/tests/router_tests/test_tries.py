"""Whom a turn blames for a failed leg, and what it may still do again."""

import pytest

from duplex_connector.contract import ConnectorKind
from duplex_router.fleet.pairs import BROKEN_AFTER, Way
from duplex_router.turn.legs import Failure

from .scripted import Stage
from .turns import FIRST, SECOND, held, released, reuse

FAILED = {"error": {"message": "Internal server error"}}


@pytest.fixture
def stage() -> Stage:
    return Stage()


def failures(stage: Stage) -> dict[str, int]:
    return {key: engine.failures for key, engine in stage.fleet.engines.items() if engine.failures}


def failed_pairs(stage: Stage) -> list[tuple[str, str, list[int]]]:
    return [(pair.prefill, pair.decode, pair.failures) for pair in stage.fleet.pairs._pairs.values()]


def test_a_turn_is_retried_once_whichever_leg_fails(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    stage.transport.take().fail(Failure.LOST)
    stage.transport.take().prefilled("hand-off")
    stage.transport.take().fail(Failure.LOST)
    assert client.status == 502
    assert released(stage) == ["hand-off"]


def test_engines_that_are_not_there_are_passed_over_each_once() -> None:
    stage = Stage(prefill=3)
    _, client = stage.begin(FIRST)
    seen = []
    for _ in range(3):
        call = stage.transport.take()
        seen.append(call.engine.key)
        call.fail(Failure.UNREACHABLE)
    assert sorted(seen) == ["p1:1", "p2:1", "p3:1"]
    assert client.status == 502


def test_passing_over_an_engine_costs_no_retry(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    stage.transport.take().fail(Failure.UNREACHABLE)
    stage.transport.take().prefilled()
    stage.transport.take().fail(Failure.LOST)
    stage.transport.take().prefilled()
    stage.transport.take().stream()
    assert client.ended


def test_a_hand_off_that_no_engine_has_seen_goes_to_another(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    stage.transport.take().prefilled("hand-off")
    stage.transport.take().fail(Failure.UNREACHABLE)
    again = stage.transport.take()
    assert (again.engine.key, again.params["remote_request_id"]) == ("d2:1", "hand-off")
    again.stream()
    assert client.ended
    assert released(stage) == []


@pytest.mark.parametrize("failure", [Failure.LOST, Failure.TIMEOUT, Failure.BROKEN])
def test_a_decode_engine_that_failed_is_not_asked_for_what_it_holds_by_the_same_turn(
    stage: Stage, failure: Failure
) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    _, client = stage.begin(SECOND)
    stage.transport.take().prefilled(outcome="full", pulled=40)
    stage.transport.take().fail(failure)
    again = stage.transport.take()
    assert again.params["remote_block_ids"] is None
    again.prefilled()
    stage.transport.take().stream(request="hold-2")
    assert reuse(client) == b"rejected;reason=engine-gone"


def test_a_hold_of_another_engine_than_the_one_that_failed_is_offered_again(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.drain("d1:1")
    stage.begin(SECOND)
    stage.transport.take().prefilled(outcome="full", pulled=40)
    decode = stage.transport.take()
    assert decode.engine.key == "d2:1"
    decode.fail(Failure.LOST)
    assert stage.transport.take().params["remote_request_id"] == "hold-1"


def test_a_hand_off_that_nobody_takes_is_released(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    stage.transport.take().prefilled("hand-off")
    stage.transport.take().fail(Failure.UNREACHABLE)
    stage.transport.take().fail(Failure.UNREACHABLE)
    assert client.status == 502
    assert released(stage) == ["hand-off"]


def test_a_pull_that_a_guarded_engine_reports_as_failed_counts_against_the_pair(stage: Stage) -> None:
    for number in range(BROKEN_AFTER):
        messages = [{"role": "user", "content": f"conversation {number}"}]
        stage.whole_turn(messages, request=f"hold-{number}")
        stage.begin([*messages, *SECOND[1:]])
        stage.transport.take().prefilled(outcome="full", reason="pull-failed", computed=50)
        stage.transport.take().stream(request=f"next-{number}")
    assert failed_pairs(stage) == [("p1:1", "d1:1", [BROKEN_AFTER, 0])]
    assert failures(stage) == {}


def test_a_broken_pair_is_avoided_by_another_prefill_engine(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    for _ in range(BROKEN_AFTER):
        stage.fleet.transfer_failed("p1:1", "d1:1", Way.PULL)
    stage.begin(SECOND)
    call = stage.transport.take()
    assert (call.engine.key, call.params["remote_request_id"]) == ("p2:1", "hold-1")


def test_without_another_prefill_engine_the_handle_is_left_out_and_kept() -> None:
    stage = Stage(prefill=1)
    stage.whole_turn(FIRST, request="hold-1")
    for _ in range(BROKEN_AFTER):
        stage.fleet.transfer_failed("p1:1", "d1:1", Way.PULL)
    _, client = stage.begin(SECOND)
    call = stage.transport.take()
    assert call.params["remote_block_ids"] is None
    call.prefilled()
    decode = stage.transport.take()
    assert decode.engine.key == "d2:1"
    assert held(stage) == {"hold-1"}
    decode.stream(request="hold-2")
    assert reuse(client) == b"rejected;reason=broken-pair"


def test_a_stock_handle_that_is_left_out_is_released() -> None:
    stage = Stage(ConnectorKind.STOCK, prefill=1)
    stage.core.templates.learn("r1", tools=False, slack=0)
    stage.begin(FIRST)
    stage.transport.take().prefilled(prompt_tokens=64)
    stage.transport.take().stream(request="hold-1", tokens=80)
    for _ in range(BROKEN_AFTER):
        stage.fleet.transfer_failed("p1:1", "d1:1", Way.PULL)
    stage.begin(SECOND)
    calls = [call for call in stage.transport.calls if not call.is_lease]
    assert calls[-1].params["remote_block_ids"] is None
    assert released(stage) == ["hold-1"]


def test_a_hand_off_that_decode_could_not_read_counts_against_the_pair(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1", duplex={"reason": "pull-failed"})
    assert failed_pairs(stage) == [("p1:1", "d1:1", [0, 1])]
    stage.whole_turn(SECOND, request="hold-2")
    assert not stage.fleet.pairs


def test_a_guarded_engines_error_is_its_own(stage: Stage) -> None:
    stage.begin(FIRST)
    stage.transport.take().prefilled()
    stage.transport.take().answer(FAILED, 500)
    assert failures(stage) == {"d1:1": 1}
    assert not stage.fleet.pairs


def test_a_stock_decode_engines_error_is_the_pairs_and_both_are_avoided() -> None:
    stage = Stage(ConnectorKind.STOCK)
    stage.begin(FIRST)
    stage.transport.take().prefilled()
    stage.transport.take().answer(FAILED, 500)
    assert failed_pairs(stage) == [("p1:1", "d1:1", [0, 1])]
    assert failures(stage) == {}
    again = stage.transport.take()
    assert again.engine.key == "p2:1"
    again.prefilled()
    assert stage.transport.take().engine.key == "d2:1"


def test_a_stock_prefill_engines_error_with_a_handle_is_the_pairs() -> None:
    stage = Stage(ConnectorKind.STOCK)
    stage.core.templates.learn("r1", tools=False, slack=0)
    stage.begin(FIRST)
    stage.transport.take().prefilled(prompt_tokens=64)
    stage.transport.take().stream(request="hold-1", tokens=80)
    stage.begin(SECOND)
    stage.transport.take().answer(FAILED, 500)
    assert failed_pairs(stage) == [("p1:1", "d1:1", [1, 0])]
    stage.transport.take().answer(FAILED, 500)
    assert failures(stage) == {"p2:1": 1}, "without a handle it is the engine's own"


def test_a_leg_that_hangs_is_the_engines_fault_unless_it_answered_others_meanwhile(stage: Stage) -> None:
    stage.begin(FIRST)
    stage.transport.take().prefilled()
    stage.clock.now += 10
    stage.transport.take().fail(Failure.TIMEOUT)
    assert failures(stage) == {"d1:1": 1}
    assert not stage.fleet.pairs
    stage.transport.take().prefilled()
    hung = stage.transport.take()
    stage.clock.now += 5
    hung.engine.answered(stage.clock())
    stage.clock.now += 5
    hung.fail(Failure.TIMEOUT)
    assert failed_pairs(stage) == [("p2:1", "d2:1", [0, 1])]


def test_the_retry_of_a_hand_off_that_hung_meets_neither_engine(stage: Stage) -> None:
    stage.begin(FIRST)
    stage.transport.take().prefilled()
    stage.transport.take().fail(Failure.TIMEOUT)
    prefill = stage.transport.take()
    prefill.prefilled()
    assert (prefill.engine.key, stage.transport.take().engine.key) == ("p2:1", "d2:1")


def test_the_retry_of_a_pull_that_hung_meets_neither_engine(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.begin(SECOND)
    stage.transport.take().fail(Failure.TIMEOUT)
    prefill = stage.transport.take()
    prefill.prefilled()
    assert (prefill.engine.key, stage.transport.take().engine.key) == ("p2:1", "d2:1")


def test_decode_is_not_the_engine_that_could_not_be_pulled_from(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.begin(SECOND)
    stage.transport.take().prefilled(outcome="full", reason="pull-failed", computed=50)
    assert stage.transport.take().engine.key == "d2:1"


def test_a_leg_that_hung_is_done_again_without_its_handle(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    _, client = stage.begin(SECOND)
    stage.transport.take().fail(Failure.TIMEOUT)
    again = stage.transport.take()
    assert again.params["remote_block_ids"] is None, "it may have been the pull that hung"
    again.prefilled()
    stage.transport.take().stream(request="hold-2")
    assert reuse(client) == b"rejected;reason=prefill-failed"
