"""Clients that leave, leg by leg: nothing stays pinned without an owner. And clients that are slow."""

import pytest

from .scripted import Stage
from .turns import FIRST, SECOND, held, released


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_leaving_during_prefill_aborts_it(stage: Stage) -> None:
    turn, client = stage.begin(FIRST)
    prefill = stage.transport.take()
    turn.client_gone()
    assert prefill.aborted
    assert client.status == 0
    assert prefill.engine.legs == prefill.engine.waiting_tokens == 0


def test_leaving_before_decode_got_its_leg_frees_the_hand_off(stage: Stage) -> None:
    turn, _ = stage.begin(FIRST)
    stage.transport.connects = False
    stage.transport.take().prefilled("hand-off")
    decode = stage.transport.take()
    turn.client_gone()
    assert decode.aborted
    assert released(stage) == ["hand-off"]


def test_leaving_while_decode_works_aborts_it(stage: Stage) -> None:
    turn, _ = stage.begin(FIRST)
    stage.transport.take().prefilled()
    decode = stage.transport.take()
    decode.start_stream()
    decode.say("Hal")
    turn.client_gone()
    assert not decode.aborted, "what has arrived already is read first"
    stage.run_later()
    assert decode.aborted
    assert stage.core.counters.in_flight == 0


def test_leaving_when_decode_has_just_finished_keeps_its_hold(stage: Stage) -> None:
    turn, _ = stage.begin(FIRST)
    stage.transport.take().prefilled()
    decode = stage.transport.take()
    decode.start_stream()
    decode.say("Hi.")
    turn.client_gone()
    decode.hand_over(request="hold-1")
    stage.run_later()
    assert not decode.aborted
    decode.end()
    assert held(stage) == {"hold-1"}
    assert stage.core.counters.in_flight == 0


def test_leaving_keeps_the_hold_of_the_turn_before(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    turn, _ = stage.begin(SECOND)
    stage.transport.take()
    turn.client_gone()
    stage.run_later()
    assert held(stage) == {"hold-1"}
    stage.begin(SECOND)
    assert stage.transport.take().params["remote_request_id"] == "hold-1"


def test_back_pressure_reaches_the_engine(stage: Stage) -> None:
    turn, _ = stage.begin(FIRST)
    stage.transport.take().prefilled()
    decode = stage.transport.take()
    decode.start_stream()
    decode.say("Hi.")
    turn.pause()
    assert decode.paused
    turn.resume()
    assert not decode.paused
