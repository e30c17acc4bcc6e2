"""Streams: in any pieces, the client sees every byte but the handle, and the observer sees the handle."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duplex_router.wire.body import LAST_CHUNK, BodyReader, chunk
from duplex_router.wire.errors import WireError
from duplex_router.wire.events import EventObserver
from duplex_router.wire.heads import ResponseHead
from duplex_router.wire.reply import Observer
from duplex_router.wire.stream import StreamRelay

from .handles import handle_fields
from .splitting import cut

HANDLE = handle_fields(request="chatcmpl-1")


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def delta(content: str | None = None, **more: object) -> dict[str, object]:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None, **more}
    return {"choices": [choice], "kv_transfer_params": None}


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
LAST = {**delta("", finish_reason="stop"), "kv_transfer_params": HANDLE}
EVENTS = [
    event(ROLE),
    event(delta("Hel")),
    event(delta("lo \u00e4")),
    b": keep-alive\n\n",
    event(LAST),
    b"data: [DONE]\n\n",
]
CLEAN = b"".join([*EVENTS[:4], event({**LAST, "kv_transfer_params": None}), EVENTS[5]])


def relay_of(*, chunked: bool = True, length: int | None = None) -> StreamRelay:
    return StreamRelay(ResponseHead(200, chunked=chunked, length=length), EventObserver())


def payload(wire: bytes) -> bytes:
    reader = BodyReader(length=None, chunked=True)
    found = reader.feed(wire)
    assert reader.done
    return found


def test_whole_chunks_without_a_handle_are_passed_on_verbatim() -> None:
    wire = b"".join(chunk(each) for each in EVENTS[:3])
    assert relay_of().feed(wire) == wire


@settings(max_examples=300)
@given(st.data())
def test_any_split_gives_the_same_clean_stream(data: st.DataObject) -> None:
    body = b"".join(EVENTS)
    chunks = cut(data, body)
    wire = b"".join(chunk(part) for part in chunks) + LAST_CHUNK
    relay = relay_of()
    out = b"".join(relay.feed(piece) for piece in cut(data, wire + b"surplus"))
    assert relay.done
    assert relay.surplus == b"surplus"
    assert payload(out) == CLEAN
    assert json.loads(relay.observer.handle or b"") == HANDLE
    assert relay.observer.reply.text == "Hello \u00e4"


@settings(max_examples=300)
@given(st.data())
def test_what_goes_by_a_lane_is_what_the_relay_would_have_passed_on(data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text(st.sampled_from('a"\\\n\u00e4\u20ac'), min_size=1, max_size=4), max_size=12))
    wire = b"".join(chunk(event(value)) for value in [ROLE, *map(delta, texts), LAST]) + chunk(EVENTS[5]) + LAST_CHUNK
    ends = [position + 4 for position in range(len(wire)) if wire.startswith(b"\n\n\r\n", position)]
    cuts = data.draw(st.sets(st.sampled_from(ends) | st.integers(0, len(wire))))
    relay, alone, by_lane = relay_of(), relay_of(), []
    for start, stop in pairwise(sorted({0, len(wire), *cuts})):
        piece, expected = wire[start:stop], alone.feed(wire[start:stop])
        before = len(by_lane)
        lane = relay.lane(by_lane.append)
        if lane is not None and lane(piece):
            assert by_lane[before:] == [expected]
        else:
            assert len(by_lane) == before
            assert relay.feed(piece) == expected
        assert relay.observer.reply.text == alone.observer.reply.text
    assert relay.done
    assert relay.observer.handle == alone.observer.handle


def test_a_chunk_like_the_last_one_goes_by_a_lane_and_no_other() -> None:
    relay, written = relay_of(), list[bytes]()
    assert relay.lane(written.append) is None
    relay.feed(chunk(event(delta("one"))))
    lane = relay.lane(written.append)
    assert lane is not None
    like = chunk(event(delta("two"))) + chunk(event(delta("three")))
    assert lane(like)
    for other in (b"", like[:-1], like[1:], like + b"5\r\n", like + chunk(event(LAST)), chunk(event(LAST)) + like):
        assert not lane(other)
    assert written == [like]
    assert relay.observer.reply.text == "onetwothree"
    relay.feed(like[:9])
    assert relay.lane(written.append) is None


NESTED = {"more": [{"kv_transfer_params": HANDLE}]}


@pytest.mark.parametrize(
    "value",
    [
        {**LAST, "usage": {"prompt_tokens": 1}},
        {"kv_transfer_params": HANDLE, "choices": [], "usage": {"prompt_tokens": 1, "more": {"b": 1}}},
        {**LAST, "kv_transfer_params": {"remote_request_id": "of no use"}},
        {**NESTED, **LAST},
        {"kv_transfer_params": HANDLE, **NESTED, "last": {"a": {}}},
    ],
)
@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_a_handle_is_cut_out_wherever_it_stands(value: dict[str, object], separators: tuple[str, str]) -> None:
    relay = relay_of()
    out = relay.feed(chunk(b"data: " + json.dumps(value, separators=separators).encode() + b"\n\n"))
    shown = json.loads(payload(out + LAST_CHUNK)[6:])
    assert shown == {**value, "kv_transfer_params": None}
    assert json.loads(relay.observer.handle or b"") == value["kv_transfer_params"]


@given(st.data())
def test_no_part_of_the_handle_leaves_before_its_event_is_whole(data: st.DataObject) -> None:
    wire = b"".join(chunk(part) for part in cut(data, b"".join(EVENTS)))
    relay = relay_of()
    for piece in cut(data, wire):
        assert b"remote_request_id" not in relay.feed(piece)


@pytest.mark.parametrize("closes", [True, False])
def test_a_stream_without_chunks_is_framed_in_chunks(closes: bool) -> None:  # noqa: FBT001 - a parameter of the test
    body = b"".join(EVENTS)
    relay = relay_of(chunked=False, length=None if closes else len(body))
    out = b"".join(relay.feed(body[start : start + 50]) for start in range(0, len(body), 50))
    if closes:
        assert not relay.done
        out += relay.end_of_connection() or b""
    assert relay.done
    assert payload(out) == CLEAN


def test_a_chunked_stream_that_breaks_off_is_not_complete() -> None:
    relay = relay_of()
    relay.feed(chunk(EVENTS[0]))
    assert relay.end_of_connection() is None


def test_an_event_without_its_blank_line_at_the_end_is_cut_too() -> None:
    relay = relay_of()
    out = relay.feed(chunk(event(LAST).rstrip(b"\n")) + LAST_CHUNK)
    assert b"remote_request_id" not in out
    assert relay.observer.handle is not None


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(LAST, indent=1).replace("\n", ""),
        json.dumps({"kv_transfer_params": HANDLE, "choices": "of another shape"}),
        json.dumps({"choices": [], "kv_transfer_params": HANDLE, "error": None}),
    ],
)
def test_the_handle_is_cut_from_whatever_layout(text: str) -> None:
    out = relay_of().feed(chunk(b"data:" + text.encode() + b"\n\n"))
    assert b"remote_request_id" not in out
    assert json.loads(payload(out + LAST_CHUNK).partition(b"data:")[2])["kv_transfer_params"] is None


def test_a_handle_over_several_data_lines_is_cut() -> None:
    text = json.dumps(LAST, indent=1).replace("\n", "\ndata: ")
    out = relay_of().feed(chunk(b"id: 7\ndata: " + text.encode() + b"\n\n"))
    assert b"remote_request_id" not in out
    assert b"id: 7\n" in out


def test_a_handle_that_cannot_be_cut_ends_the_stream() -> None:
    with pytest.raises(WireError):
        relay_of().feed(chunk(b'data: ["kv_transfer_params", {"remote_request_id": 1}]\n\n'))


def test_text_that_only_names_the_field_passes() -> None:
    wire = chunk(event(delta('"kv_transfer_params":{"a":1}')))
    relay = relay_of()
    assert relay.feed(wire) == wire
    assert relay.observer.handle is None


def test_a_role_says_nothing_yet_and_an_error_is_seen() -> None:
    relay = relay_of()
    relay.feed(chunk(event(ROLE)))
    assert not relay.observer.spoke
    relay.feed(chunk(event({"error": {"message": "load failed"}})))
    assert relay.observer.failed


def test_a_finish_reason_of_error_is_a_failure() -> None:
    relay = relay_of()
    relay.feed(chunk(event(delta(None, finish_reason="error"))))
    assert relay.observer.failed


def test_tool_calls_are_put_together() -> None:
    relay = relay_of()
    for name, arguments in (("look", '{"w'), (None, 'ord":1}')):
        call = {"index": 0, "id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}
        relay.feed(chunk(event({"choices": [choice]})))
    assert [(call.name, call.arguments) for call in relay.observer.reply.tool_calls.values()] == [
        ("look", '{"word":1}')
    ]


TEXTS = st.text(st.sampled_from('ab"\\\\ä\n{}:,') | st.characters(codec="utf-8"), max_size=6)
CALL = st.fixed_dictionaries({"index": st.just(0), "function": st.fixed_dictionaries({"arguments": TEXTS})})
SHARED = {"finish_reason": st.sampled_from([None, None, None, "stop", "error"])}
CHOICES = st.one_of(
    st.fixed_dictionaries(
        {
            "delta": st.fixed_dictionaries(
                {"content": TEXTS}, optional={"reasoning": TEXTS, "tool_calls": st.lists(CALL, max_size=1)}
            ),
            **SHARED,
        },
        optional={"logprobs": st.fixed_dictionaries({"content": TEXTS})},
    ),
    st.fixed_dictionaries({"text": TEXTS, **SHARED}),
)
EVENT = st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, min_size=1, max_size=2)},
    optional={
        "kv_transfer_params": st.sampled_from([None, HANDLE]),
        "usage": st.fixed_dictionaries({"prompt_tokens": st.integers(0, 3)}),
        "error": st.sampled_from([None, {"content": "x"}]),
    },
)


def said(content: str, before: dict[str, object] | None = None, **after: object) -> dict[str, object]:
    return {"choices": [{**(before or {}), "delta": {"content": content, **after}, "finish_reason": None}]}


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENT, max_size=8), st.booleans(), st.data())
@example([said("a"), said("b", role="c")], False, None)
@example([{**said(text), "usage": {"prompt_tokens": len(text)}} for text in ("a", "", "a")], False, None)
@example([said("a", tool_calls=[{"function": {"arguments": "x"}}])] * 2, False, None)
@example([said("a", before={"logprobs": {"content": each}}) for each in ("a", "b")], False, None)
@example([said("a"), said('a\n"b\\'), said("\u00e4/")], True, None)
def test_an_event_that_is_like_the_last_one_is_seen_as_one_that_is_read(
    events: list[dict[str, object]],
    escaped: bool,  # noqa: FBT001 - a parameter of the test
    data: st.DataObject | None,
) -> None:
    texts = [json.dumps(value, separators=(",", ":"), ensure_ascii=escaped).encode() for value in events]
    wire = b"".join(chunk(b"data: " + text + b"\n\n") for text in texts)
    relay = StreamRelay(ResponseHead(200, chunked=True), EventObserver())
    shown = b"".join(relay.feed(piece) for piece in (cut(data, wire) if data is not None else [wire]))
    seen, text, calls = relay.observer, "", ""
    expected = b""
    for each in texts:
        alone = Observer()  # has read no other event
        expected += chunk(b"data: " + alone.pass_on(each) + b"\n\n")
        text += alone.reply.text
        calls += "".join(call.arguments for call in alone.reply.tool_calls.values())
        if alone.handle is not None:
            assert seen.handle is not None
        if alone.usage is not None:
            assert seen.usage is not None
        assert seen.failed or not alone.failed
        assert seen.spoke or not alone.spoke
    assert shown == expected
    assert seen.reply.text == text
    assert "".join(call.arguments for call in seen.reply.tool_calls.values()) == calls


@pytest.mark.parametrize("wire", [b"zz\r\n", b"5\r\nabcdeXX", b"1" * 300, b"ffffffff\r\n"])
def test_broken_framing_ends_the_stream(wire: bytes) -> None:
    with pytest.raises(WireError):
        relay_of().feed(wire)
