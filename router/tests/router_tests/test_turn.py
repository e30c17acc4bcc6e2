"""A turn, leg by leg, with every way in which a leg can end; and after each, who owns the hold."""

import json
from typing import Any

import pytest

from duplex_connector.contract import ConnectorKind
from duplex_router.turn.legs import Failure
from duplex_router.wire.body import BodyReader

from .handles import handle_fields
from .scripted import Json, ScriptedClient, Stage

FIRST: list[Json] = [{"role": "user", "content": "one"}]
SECOND: list[Json] = [*FIRST, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "two"}]
THIRD: list[Json] = [*SECOND, {"role": "assistant", "content": "Ho."}, {"role": "user", "content": "three"}]


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def stock() -> Stage:
    found = Stage(ConnectorKind.STOCK)
    found.core.templates.learn("r1", tools=False, slack=0)
    return found


def reuse(client: ScriptedClient) -> bytes:
    return client.headers[b"x-duplex-reuse"]


def error_of(client: ScriptedClient) -> str:
    found: str = json.loads(client.body)["error"]["message"]
    return found


def released(stage: Stage) -> list[str]:
    """Return the holds that were released since the last look."""
    found: list[str] = []
    for params in stage.transport.leases():
        if "duplex" in params and "renew" in params["duplex"]:
            found += [request for request, seconds in params["duplex"]["renew"].items() if seconds == 0]
        else:
            found.append(params["remote_request_id"])
    return found


def held(stage: Stage) -> set[str]:
    return {entry.handle.request_id for entry in stage.core.ledger}


def test_the_legs_of_a_first_turn(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    prefill = stage.transport.take()
    assert (prefill.engine.key, prefill.params["remote_block_ids"]) == ("p1:1", None)
    assert (prefill.body["max_tokens"], prefill.body["stream"]) == (1, False)
    prefill.prefilled("hand-off")
    decode = stage.transport.take()
    assert (decode.engine.key, decode.params["remote_request_id"]) == ("d1:1", "hand-off")
    assert decode.params["duplex"] == {"ttl": 480}
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


@pytest.mark.parametrize("failure", [Failure.LOST, Failure.TIMEOUT, Failure.UNREACHABLE, Failure.BROKEN])
def test_a_dead_prefill_engine_is_replaced_and_the_handle_kept(stage: Stage, failure: Failure) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    _, client = stage.begin(SECOND)
    stage.transport.take().fail(failure)
    again = stage.transport.take()
    assert (again.engine.key, again.params["remote_request_id"]) == ("p2:1", "hold-1")
    again.prefilled(outcome="full", pulled=40)
    stage.transport.take().stream(request="hold-2")
    assert reuse(client) == b"full"


def test_the_pull_of_a_leg_that_was_cut_off_counts_a_while_longer(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.begin(SECOND)
    stage.transport.take().fail(Failure.TIMEOUT)
    stage.transport.take().prefilled(outcome="full", pulled=40)
    stage.transport.take().stream("Ho.", request="hold-2")
    assert released(stage) == []
    stage.run_later()
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
    assert params == {"do_remote_prefill": False, "do_remote_decode": False, "duplex": {"ttl": 480}}


@pytest.mark.parametrize("failure", list(Failure))
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
    _, _client = stage.begin(SECOND, tenant=b"other")
    assert stage.transport.take().params["remote_block_ids"] is None


def test_a_decode_engine_that_is_gone_is_not_pulled_from(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.urls["decode"] = ["http://d2:1"]
    stage.set_policy()
    stage.begin(SECOND)
    assert stage.transport.take().params["remote_block_ids"] is None
    assert held(stage) == set()


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
    assert stage.transport.take().params["duplex"] == {"ttl": 480}


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


# -- clients that leave


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


# -- stock engines


def stock_turn(stage: Stage, messages: list[Json], *, request: str, prompt_tokens: int) -> None:
    stage.begin(messages)
    stage.transport.take().prefilled(prompt_tokens=prompt_tokens)
    stage.transport.take().stream(request=request, tokens=prompt_tokens + 20)


def test_a_stock_handle_is_trimmed_and_used_once(stock: Stage) -> None:
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=50)
    stock.begin(SECOND)
    prefill = stock.transport.take()
    assert prefill.params["remote_num_tokens"] == 48
    assert len(prefill.params["remote_block_ids"][0]) == 3
    assert not prefill.repeatable
    assert held(stock) == set()
    stock.begin(SECOND)
    assert stock.transport.take().params["remote_block_ids"] is None


@pytest.mark.parametrize("failure", [Failure.LOST, Failure.UNREACHABLE])
def test_a_stock_handle_is_burnt_by_a_failure_and_its_hold_released(stock: Stage, failure: Failure) -> None:
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=50)
    stock.begin(SECOND)
    stock.transport.take().fail(failure)
    assert released(stock) == ["hold-1"]
    assert stock.transport.take().params["remote_block_ids"] is None


def test_a_stock_handle_is_burnt_by_a_client_that_leaves(stock: Stage) -> None:
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=50)
    turn, _ = stock.begin(SECOND)
    stock.transport.take()
    turn.client_gone()
    assert released(stock) == ["hold-1"]


def test_a_redone_turn_does_not_offer_a_stock_handle_again(stock: Stage) -> None:
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=50)
    stock.begin(SECOND)
    stock.transport.take().prefilled("one")
    stock.transport.take().fail(Failure.LOST)
    assert stock.transport.take().params["remote_block_ids"] is None


def test_a_stock_engine_with_an_unprobed_template_gets_no_handle() -> None:
    stage = Stage(ConnectorKind.STOCK)
    stock_turn(stage, FIRST, request="hold-1", prompt_tokens=50)
    _, client = stage.begin(SECOND)
    prefill = stage.transport.take()
    assert prefill.params["remote_block_ids"] is None
    prefill.prefilled(prompt_tokens=70)
    stage.transport.take().stream(request="hold-2", tokens=80)
    assert reuse(client) == b"rejected;reason=unstable-template"
    assert released(stage) == ["hold-1"]


def test_slack_is_taken_off_before_the_blocks_are_counted(stock: Stage) -> None:
    stock.core.templates.learn("r1", tools=False, slack=3)
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=50)
    stock.begin(SECOND)
    assert stock.transport.take().params["remote_num_tokens"] == 32


# -- the keeper


def test_a_hold_in_use_is_renewed_and_its_expiry_moved(stage: Stage) -> None:
    stage.set_policy(ttlSeconds=100)
    stage.whole_turn(FIRST, request="hold-1", expiry=500.0)
    stage.begin(SECOND)
    stage.clock.now += 40
    stage.core.keeper.tick()
    assert stage.transport.leases() == []
    stage.clock.now += 20
    stage.core.keeper.tick()
    assert stage.transport.leases()[0]["duplex"]["renew"] == {"hold-1": 100}
    (entry,) = stage.core.ledger
    assert entry.deadline == stage.clock.now + 100
    assert entry.handle.expiry == 560.0


def test_a_hold_that_nobody_uses_is_not_renewed_and_lapses(stage: Stage) -> None:
    stage.set_policy(ttlSeconds=100)
    stage.whole_turn(FIRST, request="hold-1")
    stage.clock.now += 60
    stage.core.keeper.tick()
    assert stage.transport.calls == []
    stage.clock.now += 40
    stage.core.keeper.tick()
    assert held(stage) == set()


def test_renewals_end_at_the_longest_hold(stage: Stage) -> None:
    stage.set_policy(ttlSeconds=100, maxHoldSeconds=150)
    stage.whole_turn(FIRST, request="hold-1")
    stage.begin(SECOND)
    stage.clock.now += 51
    stage.core.keeper.tick()
    assert stage.transport.leases() == []


def test_a_release_that_is_lost_is_sent_again_a_bounded_number_of_times(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.whole_turn(FIRST, "Ho.", request="hold-2")
    tries = 0
    while stage.transport.calls:
        stage.transport.calls.pop().fail(Failure.TIMEOUT)
        tries += 1
        stage.core.keeper.tick()
    assert tries == 3
    assert stage.core.keeper.outstanding == 0
    assert stage.core.counters.lease_messages["release-failed"] == 1


def test_over_the_budget_the_oldest_hold_goes(stage: Stage) -> None:
    for engine in stage.fleet.engines.values():
        engine.kv_tokens = 200
    stage.set_policy(retentionPercent=50)
    for number in range(3):
        message = {"role": "user", "content": f"conversation {number}"}
        stage.whole_turn([message], request=f"hold-{number}", tokens=50)
    assert held(stage) == {"hold-1", "hold-2"}
    assert released(stage) == ["hold-0"]


def test_the_end_releases_all_in_one_message_an_engine(stage: Stage) -> None:
    for number in range(3):
        stage.whole_turn([{"role": "user", "content": f"conversation {number}"}], request=f"hold-{number}")
    stage.core.ledger.retire_all()
    stage.core.keeper.flush()
    (call,) = stage.transport.calls
    assert call.params["duplex"]["renew"] == {"hold-0": 0, "hold-1": 0, "hold-2": 0}


def payload(wire: bytes) -> bytes:
    return BodyReader(length=None, chunked=True).feed(wire)


def test_what_the_client_gets_is_what_the_engine_said(stage: Stage) -> None:
    client = stage.whole_turn(FIRST, "Hi there.")
    events: list[Any] = [json.loads(line[6:]) for line in payload(client.body).split(b"\n\n") if b"{" in line]
    assert [event["choices"][0]["delta"]["content"] for event in events] == ["Hi there.", ""]
    assert all(event["kv_transfer_params"] is None for event in events)
