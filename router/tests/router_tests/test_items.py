"""Histories of items and of blocks: what clients add to them from turn to turn does not part them."""

import json
from typing import Any

from duplex_router.ledger.history import History
from duplex_router.ledger.reading import read_history
from duplex_router.wire.inference import Endpoint, parse_inference
from duplex_router.wire.messages import MessagesObserver
from duplex_router.wire.reply import Reply, ToolCall


def read(endpoint: Endpoint, **fields: Any) -> History:
    history = read_history(parse_inference(endpoint, json.dumps({"model": "m", **fields}).encode()), proved=True)
    assert history is not None
    return history


def common(one: History, other: History) -> int:
    return sum(a == b for a, b in zip(one.marks, other.marks, strict=False))


def reply(text: str, *calls: tuple[str, str]) -> Reply:
    said = Reply()
    said.say(text)
    for name, arguments in calls:
        said.tool_calls[len(said.tool_calls)] = ToolCall(name, arguments)
    return said


def test_a_text_input_is_the_first_message_of_the_next_turns_items() -> None:
    first = read(Endpoint.RESPONSES, input="one", instructions="be brief")
    items = [
        {"role": "user", "content": "one"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "Hm."}]},
        {"type": "function_call", "name": "f", "arguments": '{"a":1}', "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]
    second = read(Endpoint.RESPONSES, input=items, instructions="be brief", store=False, max_output_tokens=5)
    assert second.begins_with(first.whole, first.length)
    assert second.marks[:4] == first.continued(reply("Hm.", ("f", '{"a": 1}')))
    assert second.marks[:3] == first.continued(reply("Hm."))
    assert second.marks[:4] != first.continued(reply("Hm.", ("f", '{"a":2}')))
    assert common(first, read(Endpoint.RESPONSES, input="one", instructions="be long")) == 0


def test_cache_markers_and_stamps_of_anthropics_clients_do_not_part_histories() -> None:
    def turn(stamp: str, *, marked: int) -> History:
        messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "one"}]}]
        messages += [
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": [{"type": "text", "text": "two"}]},
        ]
        messages[marked]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: {stamp}"},
            {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}},
        ]
        return read(Endpoint.MESSAGES, messages=messages, system=system, max_tokens=5)

    assert turn("a", marked=0).marks == turn("b", marked=2).marks
    as_text = read(
        Endpoint.MESSAGES, messages=[{"role": "user", "content": "one"}], system=[{"type": "text", "text": "be brief"}]
    )
    assert common(as_text, turn("c", marked=0)) == 2


def test_anthropics_blocks_tell_the_reply() -> None:
    messages = [
        {"role": "user", "content": "one"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Hi."},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"b": 1, "a": 2}},
            ],
        },
    ]
    first, history = (read(Endpoint.MESSAGES, messages=each) for each in (messages[:1], messages))
    observer = MessagesObserver()
    observer.pass_on(json.dumps({"type": "message", "content": messages[1]["content"]}).encode())
    assert history.marks == first.continued(observer.reply)
    assert history.marks != first.continued(reply("Hi."))
