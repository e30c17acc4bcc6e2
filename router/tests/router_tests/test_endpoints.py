"""Turns of the Responses and Messages APIs, leg by leg: what each leg is sent, and what the client may see."""

import json
from typing import Any

import pytest

from duplex_connector.contract import ConnectorKind
from duplex_router.turn.legs import Failure
from duplex_router.turn.subject import Subject
from duplex_router.turn.turn import Turn
from duplex_router.wire.api_errors import engines_error, error_body
from duplex_router.wire.body import BodyReader, chunk
from duplex_router.wire.errors import RequestError
from duplex_router.wire.inference import Endpoint, parse_inference

from .handles import handle_fields
from .scripted import Call, Json, ScriptedClient, Stage
from .turns import held, released

ASK: dict[Endpoint, Json] = {
    Endpoint.RESPONSES: {"model": "m", "input": "one", "max_output_tokens": 9, "store": True},
    Endpoint.MESSAGES: {"model": "m", "messages": [{"role": "user", "content": "one"}], "max_tokens": 9},
}
HAND_OFF = {"remote_request_id": "p", "do_remote_prefill": True, "remote_prefill_cached_tokens": 0}
PREFILLED: dict[Endpoint, Json] = {
    Endpoint.RESPONSES: {"object": "response", "status": "incomplete", "usage": {"input_tokens": 50}, "output": []},
    Endpoint.MESSAGES: {
        "type": "message",
        "content": [{"type": "text", "text": "x"}],
        "usage": {"input_tokens": 40, "output_tokens": 1, "cache_read_input_tokens": 10},
    },
}
ANSWERED: dict[Endpoint, Json] = {
    Endpoint.RESPONSES: {
        "object": "response",
        "status": "completed",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}],
        "usage": {"input_tokens": 50, "output_tokens": 2},
    },
    Endpoint.MESSAGES: {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hi."}]},
}
BOTH = pytest.mark.parametrize("endpoint", [Endpoint.RESPONSES, Endpoint.MESSAGES])


@pytest.fixture
def stage() -> Stage:
    return Stage()


def begin(stage: Stage, endpoint: Endpoint, **more: Any) -> ScriptedClient:
    request = parse_inference(endpoint, json.dumps({**ASK[endpoint], **more}).encode())
    client = ScriptedClient()
    Turn(stage.core, Subject(request, stage.document, b"t", b"", b"id"), client).start()
    return client


def prefilled(stage: Stage, endpoint: Endpoint, **report: Any) -> Call:
    """Answer the prefill leg and return it."""
    call = stage.transport.take()
    params = {**HAND_OFF, **({"duplex": report} if report else {})}
    call.answer({**PREFILLED[endpoint], "kv_transfer_params": params})
    return call


def named_event(call: Call, value: Json) -> None:
    data = json.dumps(value, separators=(",", ":")).encode()
    call.receiver.received(chunk(b"event: %b\ndata: %b\n\n" % (value["type"].encode(), data)))


def events(client: ScriptedClient) -> list[tuple[str, Json]]:
    """Return the names and the data of the events that a client got."""
    reader = BodyReader(length=None, chunked=True)
    found = []
    for event in reader.feed(client.body).decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@BOTH
def test_a_turn_and_the_next_one(stage: Stage, endpoint: Endpoint) -> None:
    client = begin(stage, endpoint)
    prefill = prefilled(stage, endpoint)
    limit = "max_output_tokens" if endpoint is Endpoint.RESPONSES else "max_tokens"
    assert (prefill.body[limit], prefill.body["stream"]) == (1, False)
    assert prefill.params["remote_block_ids"] is None
    decode = stage.transport.take()
    assert decode.body[limit] == 9
    assert (decode.params["remote_request_id"], decode.params["duplex"]) == ("p", {"ttl": 60})
    decode.answer({**ANSWERED[endpoint], "kv_transfer_params": handle_fields(request="hold-1")})
    assert b"remote_" not in client.body
    assert {**json.loads(client.body), "kv_transfer_params": None} == {
        **ANSWERED[endpoint],
        "kv_transfer_params": None,
    }
    assert client.headers[b"x-duplex-tokens"] == b"pulled=0,computed=50"
    assert held(stage) == {"hold-1"}
    reply, question = {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "two"}
    name = "input" if endpoint is Endpoint.RESPONSES else "messages"
    begin(stage, endpoint, **{name: [{"role": "user", "content": "one"}, reply, question]})
    second = prefilled(stage, endpoint, outcome="full", pulled=40, computed=10)
    assert second.params["remote_request_id"] == "hold-1"
    stage.transport.take().answer({**ANSWERED[endpoint], "kv_transfer_params": handle_fields(request="hold-2")})
    assert released(stage) == ["hold-1"]


def test_nothing_is_stored_in_an_engine(stage: Stage) -> None:
    begin(stage, Endpoint.RESPONSES)
    assert prefilled(stage, Endpoint.RESPONSES).body["store"] is False
    assert stage.transport.take().body["store"] is False


@pytest.mark.parametrize("last", ["response.completed", "response.incomplete"])
def test_a_streamed_response_gives_up_its_handle_and_keeps_its_events(stage: Stage, last: str) -> None:
    client = begin(stage, Endpoint.RESPONSES, stream=True)
    prefilled(stage, Endpoint.RESPONSES)
    decode = stage.transport.take()
    decode.start_stream()
    opening = {"status": "in_progress", "output": [], "kv_transfer_params": None}
    named_event(decode, {"type": "response.created", "sequence_number": 0, "response": opening})
    assert client.status == 0, "nothing that precedes the first token may leave: the legs can still be done again"
    named_event(decode, {"type": "response.output_text.delta", "sequence_number": 1, "delta": "Hi."})
    assert client.status == 200
    response = {**ANSWERED[Endpoint.RESPONSES], "kv_transfer_params": handle_fields(request="hold-1")}
    named_event(decode, {"type": last, "sequence_number": 2, "response": response})
    decode.receiver.received(b"0\r\n\r\n")
    assert client.ended
    assert [name for name, _ in events(client)] == ["response.created", "response.output_text.delta", last]
    assert events(client)[2][1]["response"] == {**ANSWERED[Endpoint.RESPONSES], "kv_transfer_params": None}
    assert held(stage) == {"hold-1"}
    assert stage.core.counters.revision("r1").served_tokens == 2


def test_a_streamed_message_is_not_held_since_its_handle_is_not_told(stage: Stage) -> None:
    client = begin(stage, Endpoint.MESSAGES, stream=True)
    prefilled(stage, Endpoint.MESSAGES)
    decode = stage.transport.take()
    assert decode.params["duplex"] == {"ttl": 0}
    decode.start_stream()
    named_event(decode, {"type": "message_start", "message": {"usage": {"input_tokens": 50}}})
    assert client.status == 0
    named_event(decode, {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi."}})
    named_event(decode, {"type": "message_delta", "delta": {}, "usage": {"input_tokens": 50, "output_tokens": 2}})
    named_event(decode, {"type": "message_stop"})
    decode.receiver.received(b"0\r\n\r\n")
    assert client.ended
    assert [name for name, _ in events(client)][-1] == "message_stop"
    assert held(stage) == set()
    assert stage.core.counters.revision("r1").served_tokens == 2


def test_a_stock_engine_is_handed_nothing_whose_hold_nobody_could_name() -> None:
    stage = Stage(ConnectorKind.STOCK)
    begin(stage, Endpoint.MESSAGES, stream=True)
    call = stage.transport.take()
    assert call.engine.key.startswith("d")
    assert "kv_transfer_params" not in call.body


@BOTH
def test_stock_engines_reuse_nothing_of_what_no_probe_has_seen(endpoint: Endpoint) -> None:
    stage = Stage(ConnectorKind.STOCK)
    stage.core.templates.learn("r1", tools=False, slack=0)
    stage.core.templates.learn("r1", tools=True, slack=0)
    for _ in range(2):
        begin(stage, endpoint)
        assert prefilled(stage, endpoint).params["remote_block_ids"] is None
        stage.transport.take().answer({**ANSWERED[endpoint], "kv_transfer_params": handle_fields(request="hold-1")})


@BOTH
def test_an_error_before_the_first_token_costs_both_legs_once_more(stage: Stage, endpoint: Endpoint) -> None:
    client = begin(stage, endpoint, stream=True)
    prefilled(stage, endpoint)
    decode = stage.transport.take()
    decode.start_stream()
    named_event(decode, {"type": "error", "error": {"type": "api_error", "message": "no"}})
    assert client.status == 0
    prefilled(stage, endpoint)
    assert stage.transport.take().engine is not decode.engine


@BOTH
def test_a_stream_that_breaks_says_so_in_its_own_shape(stage: Stage, endpoint: Endpoint) -> None:
    client = begin(stage, endpoint, stream=True)
    prefilled(stage, endpoint)
    decode = stage.transport.take()
    decode.start_stream()
    kind = "response.output_text.delta" if endpoint is Endpoint.RESPONSES else "content_block_delta"
    named_event(decode, {"type": kind, "sequence_number": 4, "delta": {}})
    decode.fail(Failure.LOST)
    name, error = events(client)[-1]
    assert (name, error["type"], client.broken) == ("error", "error", True)
    if endpoint is Endpoint.RESPONSES:
        assert error["sequence_number"] == 5
        assert "decode engine failed" in error["message"]
    else:
        assert error["error"]["type"] == "api_error"


def test_errors_of_router_and_engines_have_anthropics_shape_on_its_path(stage: Stage) -> None:
    assert json.loads(error_body(503, "busy", path=b"/v1/messages")) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "busy"},
    }
    client = begin(stage, Endpoint.MESSAGES)
    refusal = {"error": {"message": "no", "type": "Bad Request", "param": None, "code": 400}}
    stage.transport.take().answer(refusal, 400)
    assert json.loads(client.body) == {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}


def test_an_error_in_the_right_shape_is_passed_as_it_came() -> None:
    own = b'{"type":"error", "error":{"type":"not_found_error","message":"x"}}'
    assert engines_error(404, own, b"/v1/messages") is own
    assert engines_error(404, b"teapot", b"/v1/messages") == b"teapot"
    openai = b'{"error":{"message":"x"}}'
    assert engines_error(404, openai, b"/v1/responses") is openai


@pytest.mark.parametrize(
    ("name", "value"), [("previous_response_id", "resp_1"), ("background", True), ("conversation", "conv_1")]
)
def test_what_an_engine_would_have_to_remember_is_refused(name: str, value: object) -> None:
    with pytest.raises(RequestError) as error:
        parse_inference(Endpoint.RESPONSES, json.dumps({"input": "x", name: value}).encode())
    assert (error.value.status, error.value.param) == (400, name)
    assert parse_inference(Endpoint.RESPONSES, json.dumps({"input": "x", name: None}).encode()).whole == ""


@pytest.mark.parametrize(
    ("endpoint", "fields", "whole"),
    [
        (Endpoint.RESPONSES, {"tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]}, ""),
        (Endpoint.RESPONSES, {"tools": [{"type": "web_search_preview"}]}, "built-in-tools"),
        (Endpoint.RESPONSES, {"tools": [{"type": "mcp", "server_label": "x"}]}, "built-in-tools"),
        (Endpoint.RESPONSES, {"truncation": "disabled"}, ""),
        (Endpoint.RESPONSES, {"truncation": "auto"}, "truncation"),
        (Endpoint.CHAT, {"truncate_prompt_tokens": -1}, "truncation"),
        (Endpoint.CHAT, {"tools": [{"type": "function"}]}, ""),
        (Endpoint.MESSAGES, {"tool_choice": {"type": "tool", "name": "f"}}, "named-tool"),
        (Endpoint.MESSAGES, {"tool_choice": {"type": "any"}}, ""),
        (Endpoint.MESSAGES, {"tools": [{"name": "f", "input_schema": {}}]}, ""),
        (Endpoint.MESSAGES, {"tools": "malformed", "tool_choice": 7}, ""),
    ],
)
def test_what_runs_on_decode_alone(endpoint: Endpoint, fields: Json, whole: str) -> None:
    assert parse_inference(endpoint, json.dumps(fields).encode()).whole == whole


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_no_clients_params_pass_on_any_endpoint(endpoint: Endpoint) -> None:
    body = {"kv_transfer_params": {"remote_host": "x"}, "ec_transfer_params": {"remote_host": "x"}, "a": 1}
    request = parse_inference(endpoint, json.dumps(body).encode())
    for sent in (request.prefill_body(b"{}"), request.decode_body(None)):
        assert b"remote_host" not in b"".join(sent)
    with pytest.raises(RequestError):
        parse_inference(endpoint, b'{"vllm_xargs":{"ec_transfer_params":{}}}')


def test_decode_is_given_prefills_token_ids_in_chats_of_guarded_engines(stage: Stage) -> None:
    _, client = stage.begin([{"role": "user", "content": "one"}], stream=False, return_token_ids=False)
    prefill = stage.transport.take()
    assert prefill.body["return_token_ids"] is True
    prefill.answer(
        {
            "choices": [{"finish_reason": "length"}],
            "prompt_token_ids": [5, 6, 7],
            "kv_transfer_params": {"do_remote_prefill": True, "remote_request_id": "p"},
        }
    )
    decode = stage.transport.take()
    assert decode.params["prompt_token_ids"] == [5, 6, 7]
    assert decode.body["return_token_ids"] is False
    assert client.status == 0
    stock = Stage(ConnectorKind.STOCK)
    stock.begin([{"role": "user", "content": "one"}])
    prefill = stock.transport.take()
    assert "return_token_ids" not in prefill.body
