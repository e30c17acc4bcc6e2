"""The split of a request: nothing of the client's params passes, and each leg gets its own fields."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex_router.wire.errors import RequestError
from duplex_router.wire.inference import Endpoint, parse_inference

BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 7,
    "stream": True,
    "stream_options": {"include_usage": True},
    "min_tokens": 2,
    "logprobs": True,
    "stop": ["x"],
    "temperature": 0.5,
    "kv_transfer_params": {"remote_host": "10.0.0.1"},
}


def joined(pieces: list[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(b"".join(pieces))
    return found


def test_the_two_legs() -> None:
    request = parse_inference(Endpoint.CHAT, json.dumps(BODY).encode())
    shared = {"model": "m", "messages": BODY["messages"], "temperature": 0.5}
    assert joined(request.prefill_body(b'{"p":1}')) == {
        **shared,
        "max_tokens": 1,
        "stream": False,
        "kv_transfer_params": {"p": 1},
    }
    own = {name: BODY[name] for name in ("max_tokens", "stream", "stream_options", "min_tokens", "logprobs", "stop")}
    assert joined(request.decode_body(b'{"d":1}')) == {**shared, **own, "kv_transfer_params": {"d": 1}}
    assert joined(request.decode_body(None)) == {**shared, **own}


def test_a_request_without_shared_fields_is_still_json() -> None:
    request = parse_inference(Endpoint.CHAT, b'{"stream":false}')
    assert joined(request.decode_body(b"{}")) == {"stream": False, "kv_transfer_params": {}}
    assert joined(request.prefill_body(b"1")) == {
        "model": None, "max_tokens": 1, "stream": False, "kv_transfer_params": 1
    }  # fmt: skip


@given(
    st.dictionaries(
        st.text(max_size=8) | st.sampled_from(["stream_options", "max_tokens", "kv_transfer_params"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
            lambda children: (
                st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_what_is_not_the_legs_own_comes_through_unchanged(body: dict[str, Any], ascii_only: bool) -> None:  # noqa: FBT001 - a parameter of the test
    fields = {name: value for name, value in body.items() if name not in {"model", "stream", "vllm_xargs"}}
    request = parse_inference(Endpoint.CHAT, json.dumps(fields, ensure_ascii=ascii_only).encode())
    sent = joined(request.decode_body(b'"mine"'))
    assert sent.pop("kv_transfer_params") == "mine"
    fields.pop("kv_transfer_params", None)
    assert {name: value for name, value in sent.items() if name != "model"} == fields
    prefill = joined(request.prefill_body(b'"mine"'))
    assert (prefill["max_tokens"], prefill["stream"]) == (1, False)
    assert not prefill.keys() & {"stream_options", "stop", "n", "logprobs", "min_tokens", "max_completion_tokens"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"a":1}x',
        b'{"a":' + b"[" * 100_000,
        b'{"model":1}',
        b'{"stream":"yes"}',
        b'{"stream":1}',
        b'{"stream":true,"stream":false}',
        b'{ "model" : "a" ,\n "model" : "b" }',
        b'{"kv_transfer_params":{},"kv_transfer_params":{"remote_host":"x"}}',
        b'{"kv_transfer_params":{},"kv\\u005ftransfer_params":{"remote_host":"x"}}',
        b'{"vllm_xargs":{"kv_transfer_params":{"remote_host":"x"}}}',
    ],
)
def test_bad_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as error:
        parse_inference(Endpoint.CHAT, body)
    assert error.value.status == 400


def test_no_field_goes_to_an_engine_twice() -> None:
    # One more field of just this size looks like the white space of a common serialiser.
    request = parse_inference(Endpoint.CHAT, b'{"seed":7,"model":"m","messages":[],"temperature":1,"n":1,"seed":8}')
    for sent in (request.prefill_body(b"1"), request.decode_body(b"1")):
        names = [name for name, _ in json.loads(b"".join(sent), object_pairs_hook=list)]
        assert len(set(names)) == len(names)


def test_a_body_of_which_nothing_is_taken_goes_on_to_decode_as_it_came() -> None:
    body = b'{"messages":[],"max_tokens":7}'
    assert b"".join(parse_inference(Endpoint.CHAT, body).decode_body(b"{}")) == body[:-1] + b',"kv_transfer_params":{}}'


def test_an_escaped_spelling_of_the_field_is_stripped_too() -> None:
    request = parse_inference(Endpoint.CHAT, b'{"kv\\u005ftransfer_params":{"remote_host":"x"},"a":1}')
    assert b"remote_host" not in b"".join(request.decode_body(None))


@pytest.mark.parametrize(
    ("endpoint", "fields", "whole"),
    [
        (Endpoint.CHAT, {"n": 1}, ""),
        (Endpoint.CHAT, {"n": None}, ""),
        (Endpoint.CHAT, {"n": 2}, "several-sequences"),
        (Endpoint.COMPLETIONS, {"best_of": 3}, "several-sequences"),
        (Endpoint.CHAT, {"use_beam_search": True}, "several-sequences"),
        (Endpoint.COMPLETIONS, {"prompt_logprobs": 0}, "prompt-logprobs"),
        (Endpoint.COMPLETIONS, {"echo": True}, "prompt-logprobs"),
        (Endpoint.COMPLETIONS, {"echo": False}, ""),
        (Endpoint.COMPLETIONS, {"prompt": "a"}, ""),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2]}, ""),
        (Endpoint.COMPLETIONS, {"prompt": ["a", "b"]}, "several-prompts"),
        (Endpoint.COMPLETIONS, {"prompt": [[1], [2]]}, "several-prompts"),
    ],
)
def test_what_cannot_be_split_into_two_legs(endpoint: Endpoint, fields: dict[str, Any], whole: str) -> None:
    assert parse_inference(endpoint, json.dumps(fields).encode()).whole == whole


def test_a_session_is_read_from_the_body() -> None:
    assert parse_inference(Endpoint.CHAT, b'{"conversation_id":"c1"}').session == b'"c1"'
