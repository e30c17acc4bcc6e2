"""What is read in one pass is what Python reads: over answers of engines, changed at random, and in any pieces.

Without the compiled scanner both are the same; `make test-native` has it.
"""

import contextlib
import json
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duplex_router.ledger import canonical, reading
from duplex_router.wire import heads, inference, params, prefill, scanner
from duplex_router.wire.body import chunk
from duplex_router.wire.errors import RequestError, WireError
from duplex_router.wire.events import EventObserver
from duplex_router.wire.inference import Endpoint
from duplex_router.wire.plans import EVENT, EVENT_HANDLE
from duplex_router.wire.reply import Observer

from .handles import handle_fields

TEXTS = st.text(st.sampled_from('ab"\\\x00\n\x7f/ä€😀{}:,') | st.characters(codec="utf-8"), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=4)


def sometimes(*values: Any) -> st.SearchStrategy[Any]:
    """Draw what engines write, and now and then anything else."""
    return st.sampled_from(values * 4) | VALUES


OWN = st.fixed_dictionaries(
    {},
    optional={
        "step": sometimes(64),
        "outcome": sometimes("full", "partial", ""),
        "reason": sometimes("", "pull-failed", "diverged"),
        "proved": sometimes(64, 0),
        "pulled": sometimes(64, 10**18, -1),
        "local": sometimes(0),
        "computed": sometimes(16, None),
        "ttl": sometimes(5),
        "marks": sometimes(["0" * 32] * 3),
    },
)
PARAMS = st.one_of(
    st.just(None),
    OWN.map(lambda own: {**handle_fields(), "duplex": own}),
    st.builds(lambda own, more: {**handle_fields(), **more, "duplex": own}, OWN, st.dictionaries(TEXTS, VALUES)),
    st.builds(lambda changed, value: {**handle_fields(), changed: value}, st.sampled_from([*handle_fields()]), VALUES),
    st.builds(
        lambda gone: {k: v for k, v in handle_fields().items() if k != gone}, st.sampled_from([*handle_fields()])
    ),
    VALUES,
)
CHOICE = st.fixed_dictionaries(
    {"index": st.just(0)},
    optional={
        "delta": st.fixed_dictionaries(
            {},
            optional={
                "role": sometimes("assistant"),
                "content": st.none() | TEXTS | VALUES,
                "reasoning": sometimes("", "hm"),
                "tool_calls": sometimes([], [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]),
            },
        )
        | VALUES,
        "text": st.none() | TEXTS,
        "message": sometimes(None, {"content": "whole"}),
        "finish_reason": sometimes(None, "stop", "error"),
    },
)
EVENT_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "id": TEXTS,
        "choices": st.lists(CHOICE, max_size=2) | VALUES,
        "usage": sometimes(None, {"prompt_tokens": 7, "completion_tokens": None}, {"completion_tokens": 1}),
        "error": sometimes(None),
        "kv_transfer_params": PARAMS,
        "last": VALUES,
    },
)
PREFILL_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(st.fixed_dictionaries({"finish_reason": sometimes("length", "error")}), max_size=2),
        "status": sometimes("completed", "failed"),
        "type": sometimes("message"),
        "usage": sometimes(
            None,
            {"prompt_tokens": 9, "total_tokens": 10},
            {"input_tokens": 9, "cache_read_input_tokens": 4, "cache_creation_input_tokens": None},
        ),
        "prompt_token_ids": sometimes(None, [1, 2, 3]),
        "kv_transfer_params": PARAMS,
        "last": VALUES,
    },
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\r:")])


@st.composite
def spoilt(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> bytes:
    """JSON in some layout; half of it with a few bytes changed, left out or put in."""
    layout, plain = draw(SEPARATORS), draw(st.booleans())
    data = bytearray(json.dumps(draw(values), separators=layout, ensure_ascii=plain).encode())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(data)))
        data[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", *map(bytes, zip(b'"\\,:{}[]u0-e\xff\x01 '))])
        )
    return bytes(data)


def seen(observer: Observer, data: bytes) -> Any:
    try:
        shown = observer.see(data, 0, len(data))
    except WireError as error:
        return str(error)
    offer = offered(observer)
    usage = observer.usage and (observer.usage.prompt_tokens, observer.usage.completion_tokens or 0)
    told = (usage, observer.failed, observer.spoke, observer.ended, observer.handle, offer)
    calls = [(call.name, call.arguments) for call in observer.reply.tool_calls.values()]
    with contextlib.suppress(ValueError):  # what is no JSON is compared as it is
        shown = json.loads(shown.decode("utf-8", "replace")) if shown is not None else None
    return told, shown, observer.reply.text, calls


def offered(observer: Observer) -> Any:
    """Return what a turn would make of the handle, as it does (see turn.retention)."""
    if observer.handle is None:
        return None
    try:
        handle = observer.held or params.read_handle(observer.handle)
    except WireError:
        return "malformed"
    return json.loads(handle.offer(64)), handle.boot, handle.tokens, handle.expiry, handle.computed_alone


@settings(max_examples=400, deadline=None)
@given(spoilt(EVENT_VALUES))
@example(b"[DONE]")
@example(b'{"choices":[{"delta":{"content":"\\ud83d\\ude00"}}]}')
@example(b'{"choices":[{"delta":{"content":"a","content":"b"}}]}')
@example(b'{"choices":[{"delta":{"content":"\xff"}}]}')
@example(b'{"error":{},"choices":[]}')
@example(b'{"choices":[null],"kv_transfer_params":null}')
@example(b'{"kv_transfer_params":{},"choices":[]}')
@example(b'{"kv_transfer_params":%b}' % json.dumps(handle_fields()).encode().replace(b"{", b'{"x":{"\xc2,\x80":1},', 1))
def test_an_event_says_the_same_however_it_is_read(data: bytes) -> None:
    assert seen(EventObserver(), data) == seen(Observer(), data)


def test_of_a_handle_that_is_there_twice_nothing_passes() -> None:
    handle = json.dumps(handle_fields(request="secret")).encode()
    data = b'{"choices":[],"kv_transfer_params":%b,"kv_transfer_params":%b}' % (handle, handle)
    shown = EventObserver().see(data, 0, len(data))
    assert shown is not None
    assert b"secret" not in shown


def prefilled(read: Any, body: bytes) -> Any:
    try:
        answer = read(body)
    except WireError:
        return None
    report = answer.report
    told = None
    if report is not None:
        told = (report.outcome, report.reason, report.proved, report.pulled, report.local, report.computed)
    leg = prefill.hand_off_to_decode(answer, 5.0, with_token_ids=True) if answer.hand_off is not None else None
    leg = json.loads(leg) if leg is not None and leg[:1] == b"{" else leg
    return answer.failed, answer.prompt_tokens, answer.cached_tokens, answer.token_ids, answer.hand_off, told, leg


@settings(max_examples=400, deadline=None)
@given(spoilt(PREFILL_VALUES))
@example(b'{"status":"completed","kv_transfer_params":{"do_remote_prefill":false},"last":{"\x80":null}}')
def test_a_prefill_answer_says_the_same_however_it_is_read(body: bytes) -> None:
    if isinstance(found := prefilled_or_error(prefill.read_prefill_answer, body), Exception):
        assert isinstance(prefilled_or_error(prefill._parse_prefill_answer, body), type(found))
    else:
        assert found == prefilled(prefill._parse_prefill_answer, body)


def prefilled_or_error(read: Any, body: bytes) -> Any:
    try:
        return prefilled(read, body)
    except (WireError, ValueError) as error:  # what is handed off is no object
        return error


BEFORE, AFTER = b'data: {"text":"', b'"}\n\n'
PIECES = st.one_of(
    TEXTS.map(lambda text: chunk(BEFORE + json.dumps(text, ensure_ascii=False).encode()[1:-1] + AFTER)),
    st.binary(max_size=4).map(lambda text: chunk(BEFORE + text + AFTER)),
    st.sampled_from(
        [b"0\r\n\r\n", b"5;a=b\r\nabcde\r\n", b"00000019\r\n", chunk(b": ping\n\n"), chunk(BEFORE), b"\r\n"]
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=6).map(b"".join), st.integers(0, 80), st.integers(0, 80))
@example(chunk(BEFORE + b"\\" + AFTER), 0, 80)
def test_chunks_are_passed_over_alike(wire: bytes, left_out: int, position: int) -> None:
    wire = wire[: len(wire) - left_out]
    position = min(position, len(wire)) if position < 40 else 0
    assert scanner.walk(wire, position, BEFORE, AFTER) == scanner._walk(wire, position, BEFORE, AFTER)


def test_the_scanner_tells_of_what_engines_write() -> None:
    data = json.dumps({"choices": [], "kv_transfer_params": handle_fields(engine="e")}).encode()
    found = scanner.scan(EVENT, data, 0, len(data))
    if scanner.COMPILED:
        assert found is not None
        assert found[EVENT_HANDLE + 3] == "e"
    else:
        assert found is None


NAMES = st.sampled_from(
    ["model", "messages", "stream", "max_tokens", "n", "tools", "temperature", "session_id", "kv_transfer_params"]
)
MESSAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": TEXTS}),
        st.fixed_dictionaries({"content": TEXTS, "role": TEXTS}),
        st.fixed_dictionaries({"role": st.just("tool"), "content": TEXTS, "tool_call_id": TEXTS}),
        st.fixed_dictionaries({"role": st.just("user"), "content": VALUES}),
        VALUES,
    ),
    max_size=4,
)
REQUESTS = st.fixed_dictionaries(
    {"model": sometimes("m"), "messages": MESSAGES},
    optional={"stream": sometimes(True, False), "max_tokens": sometimes(5), "n": sometimes(1), "tools": sometimes([])},
) | st.dictionaries(NAMES | TEXTS, VALUES, max_size=4)


def asked(read: Any, endpoint: Endpoint, body: bytes) -> Any:
    try:
        request = read(endpoint, body)
    except RequestError as error:
        return error.status, error.param
    fields = {name: bytes(value) for name, value in request.fields.items()}
    own = {name: bytes(value) for name, value in request.own.items()}
    said = (request.model, request.stream, bytes(request.session), request.whole, request.names, request.size)
    legs = (
        b"".join(request.prefill_body(b"{}")),
        b"".join(request.decode_body(b"{}")),
        b"".join(request.decode_body(None)),
    )
    return fields, own, said, legs


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(list(Endpoint)), spoilt(REQUESTS))
@example(Endpoint.CHAT, b'{"model":"m","model":"n","messages":[]}')
@example(Endpoint.CHAT, b'{"stream":true}')
@example(Endpoint.CHAT, b'{"model":"m","messages":[],"kv_transfer_params":{"remote_host":"h"}}')
@example(Endpoint.CHAT, b'{"model":"m","messages":[],"vllm_xargs":{"kv_transfer_params":{}}}')
@example(Endpoint.CHAT, b'{"m\\u006fdel":"m","messages":[]}')
@example(Endpoint.CHAT, b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"x" * 20000))
def test_a_request_is_split_the_same_however_it_is_read(endpoint: Endpoint, body: bytes) -> None:
    assert asked(inference.parse_inference, endpoint, body) == asked(inference._parse, endpoint, body)


def formed(read: Any, array: bytes) -> Any:
    try:
        return read(array)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


@settings(max_examples=400, deadline=None)
@given(spoilt(MESSAGES), st.booleans())
@example(b'[{"role":"user","content":"a","content":"b"}]', True)
@example(b'[{"role":"user","content":"\xff"}]', True)
@example(b'[{"role":"user","content":"\\ud800"}]', True)
def test_messages_have_the_same_forms_however_they_are_read(array: bytes, exact: bool) -> None:  # noqa: FBT001 - drawn
    def alone(array: bytes) -> list[bytes]:
        return [canonical.message_bytes(message, exact=exact) for message in reading._decode_messages(array)]

    found = formed(lambda array: reading._parts(array, canonical.message_bytes, exact=exact), array)
    assert found == formed(alone, array)


HEAD_PIECES = st.sampled_from([b"", b"0", b"1", b"25", b"9" * 18, b"1" * 19, b"a", b" ", b"content-length: ", b"\r\n"])


@given(HEAD_PIECES, HEAD_PIECES, st.lists(HEAD_PIECES, max_size=4).map(b"".join))
@example(b"a", b"a", b"a")
def test_a_head_has_the_same_length_however_it_is_read(before: bytes, after: bytes, head: bytes) -> None:
    for each in (head, before + head + after):
        told = scanner.length_between(before, each, after)
        assert told == scanner._length_between(before, each, after)


@given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=20), st.booleans())
def test_lines_are_written_alike(fields: list[tuple[bytes, bytes]], as_tuple: bool) -> None:  # noqa: FBT001 - drawn
    expected = b"".join(b"%b: %b\r\n" % field for field in fields)
    assert heads.render_fields(tuple(fields) if as_tuple else fields) == expected
