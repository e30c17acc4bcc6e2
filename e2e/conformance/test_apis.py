"""Responses and messages: where each of these APIs carries the params, and that a hand-off through them is right."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final

from duplex_connector.contract import Duplex, Params

from .checks import GUARDED, connector, over
from .report import Report
from .turns import COLD, Reply, Turns, event_data, request
from .variants import MODEL, Variant

_RESPONSES: Final = "/v1/responses"
_MESSAGES: Final = "/v1/messages"
_LIMIT: Final = {_RESPONSES: "max_output_tokens", _MESSAGES: "max_tokens"}
_REPLY: Final = 40


def _words(turns: Turns, sentences: int) -> str:
    numbers = [turns.random.randrange(10**6) for _ in range(sentences)]
    return " ".join(f"the cache holds {number} tokens of the prompt." for number in numbers)


def _body(path: str, said: list[dict[str, str]], most: int, params: Mapping[str, Any] | None) -> dict[str, Any]:
    content = {"input": said, "store": False, "ignore_eos": True} if path == _RESPONSES else {"messages": said}
    body = {"model": MODEL, "temperature": 0, _LIMIT[path]: most, **content}
    return body if params is None else {**body, Params.FIELD: dict(params)}


def _ask(
    turns: Turns, url: str, path: str, said: list[dict[str, str]], *, most: int, params: Mapping[str, Any] | None
) -> Reply:
    reply = request(url, path, _body(path, said, most, params), seconds=turns.engines.facts.answer_seconds)
    assert reply.status == http.client.OK, reply.body
    return reply


def _stream(url: str, path: str, body: Mapping[str, Any], seconds: float) -> list[dict[str, Any]]:
    return [json.loads(event) for event in event_data(url, path, body, seconds=seconds)]


def _text(body: Mapping[str, Any]) -> str:
    blocks = body["content"] if "content" in body else [part for item in body["output"] for part in item["content"]]
    return "".join(block["text"] for block in blocks)


@over(GUARDED)
def test_a_response_hands_over_and_its_stream_ends_with_the_handle(
    turns: Turns, variant: Variant, report: Report
) -> None:
    engines, said = turns.engines, [{"role": "user", "content": _words(turns, 20)}]
    prefilled = _ask(turns, engines.prefill, _RESPONSES, said, most=1, params=COLD)
    assert prefilled.body["status"] == "incomplete"
    body = _body(_RESPONSES, said, _REPLY, prefilled.params)
    events = _stream(engines.decode, _RESPONSES, body, engines.facts.answer_seconds)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] in {"response.completed", "response.incomplete"}
    last = events[-1]["response"]
    assert all(not (event.get("response") or {}).get(Params.FIELD) for event in events[:-1])
    handle = last[Params.FIELD]
    assert handle[Params.DO_REMOTE_DECODE] is True
    assert _text(last) == _text(_ask(turns, engines.plain, _RESPONSES, said, most=_REPLY, params=None).body)
    longer = [*said, {"role": "assistant", "content": _text(last)}, {"role": "user", "content": _words(turns, 3)}]
    second = _ask(turns, engines.prefill, _RESPONSES, longer, most=1, params=handle)
    assert second.duplex[Duplex.PULLED] > 0
    turns.drop(second)
    turns.release(handle)
    report.add("responses, streamed, then continued", connector(variant), "right", pulled=second.duplex[Duplex.PULLED])


@over(GUARDED)
def test_a_message_tells_its_handle_only_where_it_is_whole(turns: Turns, variant: Variant, report: Report) -> None:
    engines, said = turns.engines, [{"role": "user", "content": _words(turns, 20)}]
    truth = _text(_ask(turns, engines.plain, _MESSAGES, said, most=_REPLY, params=None).body)
    prefilled = _ask(turns, engines.prefill, _MESSAGES, said, most=1, params=COLD)
    whole = _ask(turns, engines.decode, _MESSAGES, said, most=_REPLY, params=prefilled.params)
    assert whole.params[Params.DO_REMOTE_DECODE] is True
    assert _text(whole.body) == truth
    turns.release(whole.params)
    prefilled = _ask(turns, engines.prefill, _MESSAGES, said, most=1, params=COLD)
    params = {**prefilled.params, Params.DUPLEX: {**prefilled.duplex, Duplex.TTL: 0}}
    body = _body(_MESSAGES, said, _REPLY, params)
    events = _stream(engines.decode, _MESSAGES, body, engines.facts.answer_seconds)
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    assert "remote_block_ids" not in json.dumps(events)
    texts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(texts) == truth
    report.add("messages, whole and streamed", connector(variant), "right")
