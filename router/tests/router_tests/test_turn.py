"""A turn, leg by leg, with every way in which a leg can end; and after each, who owns the hold."""

import json
from typing import Any

import pytest

from duplex_router.turn.legs import Failure
from duplex_router.wire.body import LAST_CHUNK, BodyReader

from .handles import handle_fields
from .scripted import Json, Stage
from .turns import FIRST, SECOND, error_of, held, released, reuse

OTHER_REVISION = {"prefill": ["http://p9:1"], "decode": ["http://d9:1"]}


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_legs_of_a_first_turn(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    prefill = stage.transport.take()
    assert (prefill.engine.key, prefill.params["remote_block_ids"]) == ("p1:1", None)
    assert (prefill.body["max_tokens"], prefill.body["stream"]) == (1, False)
    prefill.prefilled("hand-off")
    decode = stage.transport.take()
    assert (decode.engine.key, decode.params["remote_request_id"]) == ("d1:1", "hand-off")
    assert decode.params["duplex"] == {"ttl": 60}
    decode.stream("Hi.", request="hold-1")
    assert client.ended
    assert b"remote_request_id" not in client.body
    assert b"Hi." in client.body
    assert client.headers[b"x-duplex-tokens"] == b"pulled=0,computed=50"
    assert reuse(client) == b"miss"
    assert held(stage) == {"hold-1"}


def test_the_second_turn_offers_the_first_ones_handle_and_replaces_it(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    _, client = stage.begin(SECOND)
    prefill = stage.transport.take()
    assert prefill.params["remote_request_id"] == "hold-1"
    assert prefill.params["duplex"]["keep"] is True
    assert prefill.params["duplex"]["threshold"] == 64
    prefill.prefilled(outcome="full", pulled=40, computed=10)
    stage.transport.take().stream("Ho.", request="hold-2")
    assert reuse(client) == b"full"
    assert client.headers[b"x-duplex-tokens"] == b"pulled=40,computed=10"
    assert held(stage) == {"hold-2"}
    assert released(stage) == ["hold-1"]


def test_a_next_turn_that_comes_before_the_engine_has_closed_the_last_finds_its_hold(stage: Stage) -> None:
    """A client goes on at `[DONE]`; an engine may send the end of its answer's framing a moment later."""
    _, client = stage.begin(FIRST)
    stage.transport.take().prefilled()
    decode = stage.transport.take()
    decode.start_stream()
    decode.say("Hi.")
    decode.hand_over(request="hold-1")
    decode.say_done()
    assert b"[DONE]" in client.body
    stage.begin(SECOND)
    assert stage.transport.take().params["remote_request_id"] == "hold-1"
    decode.receiver.received(LAST_CHUNK)
    assert client.ended
    assert held(stage) == {"hold-1"}


def test_a_stream_that_breaks_off_after_its_end_keeps_its_hold_once(stage: Stage) -> None:
    stage.begin(FIRST)
    stage.transport.take().prefilled()
    decode = stage.transport.take()
    decode.start_stream()
    decode.say("Hi.")
    decode.hand_over(request="hold-1")
    decode.say_done()
    decode.fail(Failure.LOST)
    assert held(stage) == {"hold-1"}
    assert released(stage) == []


def test_a_hold_is_not_released_while_another_turn_pulls_it(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.begin(SECOND)
    pulling = stage.transport.take()
    stage.whole_turn([*SECOND[:2], {"role": "user", "content": "branch"}], request="hold-2")
    assert released(stage) == []
    pulling.prefilled(outcome="full", pulled=40)
    assert released(stage) == ["hold-1"]
    stage.transport.take().stream(request="hold-3")
    assert held(stage) == {"hold-2", "hold-3"}
    assert released(stage) == []


def test_a_branch_does_not_replace_what_it_left(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.whole_turn(SECOND, "Ho.", request="hold-2")
    stage.transport.leases()
    stage.whole_turn([*FIRST, {"role": "user", "content": "edited"}], request="hold-3")
    assert held(stage) == {"hold-2", "hold-3"}
    assert released(stage) == []


def test_regenerating_replaces_the_hold_of_the_same_prompt(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.whole_turn(FIRST, "Ho.", request="hold-2")
    assert held(stage) == {"hold-2"}
    assert released(stage) == ["hold-1"]


@pytest.mark.parametrize("failure", [Failure.LOST, Failure.UNREACHABLE, Failure.BROKEN])
def test_a_dead_prefill_engine_is_replaced_and_the_handle_kept(stage: Stage, failure: Failure) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    _, client = stage.begin(SECOND)
    stage.transport.take().fail(failure)
    again = stage.transport.take()
    assert (again.engine.key, again.params["remote_request_id"]) == ("p2:1", "hold-1")
    again.prefilled(outcome="full", pulled=40)
    stage.transport.take().stream(request="hold-2")
    assert reuse(client) == b"full"


def test_the_pull_of_a_leg_that_was_cut_off_counts_until_the_deadline_that_its_engine_was_told(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    lease = stage.document.policy.lease
    stage.wait(10)
    stage.begin(SECOND)
    stage.transport.take().fail(Failure.TIMEOUT)
    stage.transport.take().prefilled(outcome="full", pulled=40)
    stage.transport.take().stream("Ho.", request="hold-2")
    assert released(stage) == []
    stage.wait(lease - 11)
    assert released(stage) == [], "an engine that stood still would still use what it reads now"
    stage.wait(2)
    assert released(stage) == ["hold-1"]


def test_an_engine_that_answers_with_an_error_gets_no_handle_the_second_time(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    _, client = stage.begin(SECOND)
    stage.transport.take().answer({"error": {"message": "Internal server error"}}, 500)
    again = stage.transport.take()
    assert again.params["remote_block_ids"] is None
    again.prefilled()
    stage.transport.take().stream(request="hold-2")
    assert reuse(client) == b"rejected;reason=prefill-failed"


@pytest.mark.parametrize("reason", ["pull-failed", "expired", "malformed", "groups-differ", "no-proof"])
def test_a_handle_that_prefill_finds_useless_is_not_offered_again(stage: Stage, reason: str) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    _, client = stage.begin(SECOND)
    stage.transport.take().prefilled(outcome="none", reason=reason, computed=50)
    assert released(stage) == ["hold-1"]
    stage.begin(SECOND)
    assert [call.params.get("remote_block_ids") for call in stage.transport.calls][-1] is None
    stage.transport.calls[0].stream(request="hold-2")
    assert reuse(client) == f"rejected;reason={reason}".encode()


def test_a_handle_that_was_not_worth_a_pull_stays(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.begin(SECOND)
    stage.transport.take().prefilled(outcome="full", reason="below-threshold", computed=50)
    assert held(stage) == {"hold-1"}


def test_the_only_prefill_engine_computes_without_the_handle() -> None:
    stage = Stage(prefill=1)
    stage.whole_turn(FIRST, request="hold-1")
    stage.begin(SECOND)
    stage.transport.take().fail(Failure.LOST)
    assert stage.transport.take().params["remote_block_ids"] is None


def test_a_finish_reason_of_error_is_a_failure_and_never_reaches_decode(stage: Stage) -> None:
    stage.begin(FIRST)
    params = {"remote_request_id": "poison"}
    stage.transport.take().answer({"choices": [{"finish_reason": "error"}], "kv_transfer_params": params})
    again = stage.transport.take()
    assert again.body["max_tokens"] == 1
    assert again.engine.key == "p2:1"


@pytest.mark.parametrize(
    ("failure", "status"), [(Failure.LOST, 502), (Failure.TIMEOUT, 504), (Failure.UNREACHABLE, 502)]
)
def test_two_failed_prefill_legs_end_the_turn(stage: Stage, failure: Failure, status: int) -> None:
    _, client = stage.begin(FIRST)
    stage.transport.take().fail(failure)
    stage.transport.take().fail(failure)
    assert stage.transport.calls == []
    assert client.status == status
    assert "prefill" in error_of(client)
    assert stage.core.counters.in_flight == 0


def test_a_refusal_by_prefill_is_the_clients(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    stage.transport.take().answer({"error": {"message": "too long"}}, 400)
    assert (client.status, error_of(client)) == (400, "too long")
    assert stage.transport.calls == []


def test_a_prefill_that_hands_nothing_off_leaves_all_to_decode(stage: Stage) -> None:
    stage.begin(FIRST)
    stage.transport.take().answer({"choices": [{"finish_reason": "stop"}], "kv_transfer_params": None})
    params = stage.transport.take().params
    assert params == {"do_remote_prefill": False, "do_remote_decode": False, "duplex": {"ttl": 60}}


@pytest.mark.parametrize("failure", [Failure.LOST, Failure.TIMEOUT, Failure.BROKEN])
def test_a_failed_decode_leg_costs_both_legs_once_more(stage: Stage, failure: Failure) -> None:
    _, client = stage.begin(FIRST)
    stage.transport.take().prefilled("one")
    decode = stage.transport.take()
    assert not decode.repeatable, "its hand-off must not be read twice"
    decode.fail(failure)
    assert released(stage) == ["one"]
    stage.transport.take().prefilled("two")
    again = stage.transport.take()
    assert (again.engine.key, again.params["remote_request_id"]) == ("d2:1", "two")
    again.stream()
    assert client.ended


def test_a_turn_that_is_done_again_does_not_offer_what_was_released_meanwhile(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.drain("d1:1")
    _, client = stage.begin(SECOND)
    stage.transport.take().prefilled("one", outcome="full", pulled=40)
    decode = stage.transport.take()
    stage.drain()
    stage.whole_turn([*SECOND[:2], {"role": "user", "content": "branch"}], request="hold-2")
    assert released(stage) == ["hold-1"]
    decode.fail(Failure.LOST)
    again = stage.transport.take()
    assert again.params["remote_block_ids"] is None
    again.prefilled("two")
    stage.transport.take().stream()
    assert reuse(client) == b"rejected;reason=expired"


def test_a_handle_never_crosses_to_another_revision(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.revisions = {"r1": {"prefill": [], "decode": stage.urls["decode"]}, "r2": OTHER_REVISION}
    stage.set_policy()
    _, client = stage.begin(SECOND)
    prefill = stage.transport.take()
    assert (prefill.engine.key, prefill.params["remote_block_ids"]) == ("p9:1", None)
    prefill.prefilled()
    decode = stage.transport.take()
    assert decode.engine.key == "d9:1"
    decode.stream()
    assert reuse(client) == b"rejected;reason=revision"


def test_a_conversation_stays_on_its_revision_while_that_can_serve_it(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.revisions = {"r2": OTHER_REVISION, "r1": stage.urls}
    stage.set_policy()
    for _ in range(3):
        stage.begin(SECOND)
        prefill = stage.transport.take()
        assert prefill.engine.revision == "r1"
        assert prefill.params["remote_request_id"] == "hold-1"


def test_a_stream_that_fails_before_it_says_anything_is_done_again(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    stage.transport.take().prefilled("one")
    decode = stage.transport.take()
    decode.start_stream()
    decode.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    assert client.status == 0, "a role alone may still be taken back"
    decode.event({"error": {"message": "load failed"}})
    assert decode.aborted
    stage.transport.take().prefilled("two")
    stage.transport.take().stream("Right.")
    assert client.status == 200
    assert b"Right." in client.body
    assert b"load failed" not in client.body


@pytest.mark.parametrize("body", [{"error": "x"}, {"choices": [{"finish_reason": "error"}]}])
def test_an_unstreamed_answer_that_failed_is_done_again(stage: Stage, body: Json) -> None:
    _, client = stage.begin(FIRST, stream=False)
    stage.transport.take().prefilled("one")
    stage.transport.take().answer(body, 200)
    stage.transport.take().prefilled("two")
    stage.transport.take().answer({"choices": [{"message": {"content": "Right."}}]})
    assert json.loads(client.body)["choices"][0]["message"]["content"] == "Right."


def test_two_failed_decode_legs_end_the_turn(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    for _ in range(2):
        stage.transport.take().prefilled()
        stage.transport.take().answer({"error": {"message": "dead"}}, 500)
    assert (client.status, error_of(client)) == (500, "dead")
    assert all(call.body["model"] != "m" for call in stage.transport.calls)


def test_a_stream_that_breaks_after_its_first_words_is_not_done_again(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    stage.transport.take().prefilled()
    decode = stage.transport.take()
    decode.start_stream()
    decode.say("Hal")
    decode.fail(Failure.LOST)
    assert client.broken
    assert not client.ended
    assert b'"error"' in client.body
    assert stage.transport.calls == []


def test_an_unstreamed_answer_has_the_handle_cut(stage: Stage) -> None:
    _, client = stage.begin(FIRST, stream=False)
    stage.transport.take().prefilled()
    stage.transport.take().answer(
        {"id": 1, "choices": [{"message": {"content": "Hi."}}], "kv_transfer_params": handle_fields(request="hold-1")}
    )
    assert json.loads(client.body) == {
        "id": 1,
        "choices": [{"message": {"content": "Hi."}}],
        "kv_transfer_params": None,
    }
    assert held(stage) == {"hold-1"}


def test_another_tenant_gets_no_handle(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    _, client = stage.begin(SECOND, tenant=b"other")
    prefill = stage.transport.take()
    assert prefill.params["remote_block_ids"] is None
    prefill.prefilled()
    stage.transport.take().stream()
    assert reuse(client) == b"miss", "what others have must not be told"
    assert stage.core.counters.rejected == {"tenant": 1}


def test_a_decode_engine_that_is_gone_is_not_pulled_from(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.urls["decode"] = ["http://d2:1"]
    stage.set_policy()
    stage.begin(SECOND)
    assert stage.transport.take().params["remote_block_ids"] is None
    assert held(stage) == set()


def test_an_engine_that_serves_no_more_is_not_pulled_from(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.fleet.engines["d1:1"].serving = False
    _, client = stage.begin(SECOND)
    prefill = stage.transport.take()
    assert prefill.params["remote_block_ids"] is None
    prefill.prefilled()
    stage.transport.take().stream()
    assert reuse(client) == b"rejected;reason=engine-gone"


def test_a_new_boot_at_the_same_address_drops_old_handles(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1", engine="boot-1")
    stage.whole_turn([{"role": "user", "content": "else"}], request="hold-2", engine="boot-2")
    assert held(stage) == {"hold-2"}


def test_where_nothing_shall_be_held_nothing_is(stage: Stage) -> None:
    stage.set_policy(bidirectional=False)
    _, client = stage.begin(FIRST)
    stage.transport.take().prefilled()
    decode = stage.transport.take()
    assert decode.params["duplex"] == {"ttl": 0}
    decode.stream(request="unasked")
    assert reuse(client) == b"rejected;reason=disabled"
    assert held(stage) == set()
    assert released(stage) == ["unasked"]


def test_streams_that_would_hide_their_handle_are_not_held(stage: Stage) -> None:
    stage.set_policy(streams=False)
    stage.begin(FIRST)
    stage.transport.take().prefilled()
    assert stage.transport.take().params["duplex"] == {"ttl": 0}
    stage.begin(FIRST, stream=False)
    stage.transport.take().prefilled()
    assert stage.transport.take().params["duplex"] == {"ttl": 60}


@pytest.mark.parametrize("more", [{"n": 2}, {"prompt_logprobs": 1}, {"use_beam_search": True}])
def test_what_cannot_be_split_goes_to_decode_alone(stage: Stage, more: Json) -> None:
    _, client = stage.begin(FIRST, stream=False, **more)
    decode = stage.transport.take()
    assert decode.engine.key == "d1:1"
    assert "kv_transfer_params" not in decode.body
    decode.answer({"choices": [{"message": {"content": "Hi."}}]})
    assert reuse(client) == b"rejected;reason=unsupported-request"


def test_without_a_complete_revision_the_turn_is_refused() -> None:
    stage = Stage(decode=0)
    _, client = stage.begin(FIRST)
    assert client.status == 503
    assert b"retry-after" in client.headers
    assert stage.transport.calls == []


def payload(wire: bytes) -> bytes:
    return BodyReader(length=None, chunked=True).feed(wire)


def test_what_the_client_gets_is_what_the_engine_said(stage: Stage) -> None:
    client = stage.whole_turn(FIRST, "Hi there.")
    events: list[Any] = [json.loads(line[6:]) for line in payload(client.body).split(b"\n\n") if b"{" in line]
    assert [event["choices"][0]["delta"]["content"] for event in events] == ["Hi there.", ""]
    assert all(event["kv_transfer_params"] is None for event in events)
