"""The openai and anthropic clients through the router get what a plain server gives, and their history is reused."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from harness.answers import without_chance

from .rig import MODEL, Engines, Router, SimulatedEngine, fresh, router, user

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "It.", "parameters": SCHEMA}}
FLAT_TOOL = {"type": "function", "name": "get_weather", "description": "It.", "parameters": SCHEMA, "strict": False}
CLAUDES_TOOL = {"name": "get_weather", "description": "It.", "input_schema": SCHEMA}
NO_EOS = {"extra_body": {"ignore_eos": True}}
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@pytest.fixture(params=["guarded", "stock"])
def engines(request: pytest.FixtureRequest) -> Engines:
    found: Engines = request.getfixturevalue(request.param)
    return found


class Clients:
    """Both vendors' clients of one server."""

    def __init__(self, url: str) -> None:
        self.openai: Any = openai.AsyncOpenAI(base_url=url + "/v1", api_key="key", max_retries=0)
        self.claude: Any = anthropic.AsyncAnthropic(base_url=url, api_key="key", max_retries=0)

    async def close(self) -> None:
        await self.openai.close()
        await self.claude.close()


@pytest.fixture
async def ours(engines: Engines, tmp_path: Path) -> AsyncIterator[Router]:
    async with router(tmp_path, engines.document()) as under_test:
        yield under_test
    assert engines.corrupt() == 0
    if engines is not None and engines.kind.value == "Guarded":
        assert engines.holds() == 0


@pytest.fixture
async def clients(ours: Router) -> AsyncIterator[Clients]:
    made = Clients(ours.url)
    yield made
    await made.close()


@pytest.fixture
async def plain(engines: Engines) -> AsyncIterator[Clients]:
    server: SimulatedEngine | None = engines.plain
    assert server is not None
    made = Clients(server.url)
    yield made
    await made.close()


async def chat(clients: Clients, **options: Any) -> list[Any]:
    """Return the answer, or the chunks of the stream, as plain values."""
    answer = await clients.openai.chat.completions.create(model=MODEL, **options)
    found = [chunk async for chunk in answer] if options.get("stream") else [answer]
    assert all(getattr(each, "kv_transfer_params", None) is None for each in found)
    return [without_chance(each.model_dump()) for each in found]


BASE: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
CHAT_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "max_completion_tokens": {"max_tokens": None, "max_completion_tokens": 7},
    "several choices": {"n": 2, "temperature": 1},
    "log-probabilities": {"logprobs": True, "top_logprobs": 3},
    "stop": {"stop": ["the", "cache"], "max_tokens": 200},
    "a tool is forced": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200},
    "a tool is named": {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "max_tokens": 200,
    },
    "tools are forbidden": {"tools": [TOOL], "tool_choice": "none"},
    "token ids": {"extra_body": {"return_token_ids": True}},
    "min_tokens": {"extra_body": {"min_tokens": 10}},
    "a salt": {"extra_body": {"cache_salt": "pepper"}},
}


@STREAMED
@pytest.mark.parametrize("name", CHAT_OPTIONS)
async def test_chat_options(clients: Clients, plain: Clients, name: str, stream: bool) -> None:  # noqa: FBT001 - a parameter of the test
    messages = [
        *fresh(),
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    ]
    options: dict[str, Any] = {**BASE, **CHAT_OPTIONS[name], "messages": messages, "stream": stream}
    options = {key: value for key, value in options.items() if value is not None}
    if stream:
        options["stream_options"] = {"include_usage": True}
    assert await chat(clients, **options) == await chat(plain, **options)


@STREAMED
async def test_completions_options(clients: Clients, plain: Clients, stream: bool) -> None:  # noqa: FBT001 - a parameter of the test
    text = fresh()[0]["content"]
    for options in (
        {"prompt": text},
        {"prompt": text, "logprobs": 2, "max_tokens": 5},
        {"prompt": text, "n": 2, "temperature": 1},
        {"prompt": [text, text + "more"], "max_tokens": 5},
        {"prompt": list(range(300, 340)), "stop": ["e"]},
    ):
        answers = []
        for each in (clients, plain):
            answer = await each.openai.completions.create(model=MODEL, stream=stream, **{"temperature": 0, **options})
            found = [chunk async for chunk in answer] if stream else [answer]
            answers.append(sorted([json.dumps(without_chance(part.model_dump())) for part in found]))
        assert answers[0] == answers[1], options


RESPONSE_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "instructions": {"instructions": "be brief"},
    "log-probabilities": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "a tool is forced": {"tools": [FLAT_TOOL], "tool_choice": "required", "max_output_tokens": 200},
    "a built-in tool": {"tools": [{"type": "web_search_preview"}]},
    "stored": {"store": True, "metadata": {"a": "b"}},
}


@STREAMED
@pytest.mark.parametrize("name", RESPONSE_OPTIONS)
async def test_response_options(clients: Clients, plain: Clients, name: str, stream: bool) -> None:  # noqa: FBT001 - a parameter of the test
    text = fresh()[0]["content"]
    options = {"input": text, "max_output_tokens": 24, "temperature": 0, **RESPONSE_OPTIONS[name]}
    answers = []
    for each in (clients, plain):
        answer = await each.openai.responses.create(model=MODEL, stream=stream, **options)
        found = [event async for event in answer] if stream else [answer]
        answers.append([without_chance(part.model_dump()) for part in found])
    assert answers[0] == answers[1]


MESSAGE_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "system": {"system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]},
    "stop": {"stop_sequences": ["the", "cache"], "max_tokens": 200},
    "a tool is forced": {"tools": [CLAUDES_TOOL], "tool_choice": {"type": "any"}, "max_tokens": 200},
    "a tool is named": {
        "tools": [CLAUDES_TOOL],
        "tool_choice": {"type": "tool", "name": "get_weather"},
        "max_tokens": 200,
    },
}


@STREAMED
@pytest.mark.parametrize("name", MESSAGE_OPTIONS)
async def test_message_options(clients: Clients, plain: Clients, name: str, stream: bool) -> None:  # noqa: FBT001 - a parameter of the test
    content = [{"type": "text", "text": fresh()[0]["content"]}, {"type": "text", "text": "two"}]
    options: dict[str, Any] = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 24,
        **MESSAGE_OPTIONS[name],
    }
    answers = []
    for each in (clients, plain):
        answer = await each.claude.messages.create(model=MODEL, stream=stream, **options)
        found = [event async for event in answer] if stream else [answer]
        assert all(getattr(part, "kv_transfer_params", None) is None for part in found)
        answers.append([without_chance(part.model_dump()) for part in found])
    assert answers[0] == answers[1]


async def test_a_tool_loop_in_chat_reuses_its_history(clients: Clients, plain: Clients, ours: Router) -> None:
    messages: list[dict[str, Any]] = [*fresh(), user("Use get_weather.")]
    options: dict[str, Any] = {"tools": [TOOL], "max_tokens": 200, "temperature": 0}
    for _ in range(3):
        (first,) = await chat(clients, messages=messages, **options)
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        message = (
            (await clients.openai.chat.completions.create(model=MODEL, messages=messages, **options)).choices[0].message
        )
        messages += [message.model_dump(exclude_none=True)]
        messages += [{"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny " * 20}]
        answered, truth = [await chat(each, messages=messages, **options) for each in (clients, plain)]
        assert answered == truth
        messages += [{"role": "assistant", "content": answered[0]["choices"][0]["message"]["content"]}]
        messages += [user("Use get_weather again.")]
    if ours.service.fleet.document is not None and ours.service.fleet.document.model.connector.value == "Guarded":
        counters = ours.service.core.counters
        assert counters.full + counters.partial == counters.eligible == 8


async def test_a_conversation_of_responses_pulls_its_history(guarded: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, guarded.document()) as under_test:
        clients = Clients(under_test.url)
        items: list[Any] = [user("first " + fresh()[0]["content"])]
        for turn in range(3):
            create = clients.openai.responses.with_raw_response.create
            raw = await create(model=MODEL, input=items, max_output_tokens=60, store=False, **NO_EOS)
            assert raw.headers["x-duplex-reuse"] == ("full" if turn else "miss")
            items += [item.model_dump() for item in raw.parse().output]
            items += [user(f"turn {turn}")]
        stream = await create(model=MODEL, input=items, max_output_tokens=60, stream=True, **NO_EOS)
        assert stream.headers["x-duplex-reuse"] == "full"
        events = [event async for event in stream.parse()]
        items += [item.model_dump() for item in events[-1].response.output]
        raw = await create(model=MODEL, input=[*items, user("last")], max_output_tokens=5, **NO_EOS)
        assert raw.headers["x-duplex-reuse"] == "full"
        await clients.close()
    assert (guarded.holds(), guarded.corrupt()) == (0, 0)


async def test_a_conversation_of_messages_pulls_its_history_where_answers_tell_the_handle(
    guarded: Engines, tmp_path: Path
) -> None:
    async with router(tmp_path, guarded.document()) as under_test:
        clients = Clients(under_test.url)
        create = clients.claude.messages.with_raw_response.create
        messages: list[Any] = [user("first " + fresh()[0]["content"])]
        for turn in range(3):
            raw = await create(model=MODEL, messages=messages, max_tokens=60, **NO_EOS)
            assert raw.headers["x-duplex-reuse"] == ("full" if turn else "miss")
            parsed = await raw.parse()
            messages += [{"role": "assistant", "content": [block.model_dump() for block in parsed.content]}]
            messages += [user(f"turn {turn}")]
        held = guarded.holds()
        streamed = await create(model=MODEL, messages=messages, max_tokens=20, stream=True, **NO_EOS)
        assert streamed.headers["x-duplex-reuse"] == "full"
        assert guarded.holds() == held
        await clients.close()
    assert (guarded.holds(), guarded.corrupt()) == (0, 0)


async def test_errors_reach_each_client_in_its_own_words(clients: Clients) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await clients.claude.messages.create(model="other", max_tokens=5, messages=[user("x")])
    assert unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as malformed:
        await clients.claude.messages.create(model=MODEL, max_tokens=0, messages=[user("x")])
    assert malformed.value.body["type"] == "error"
    with pytest.raises(openai.BadRequestError) as stateful:
        await clients.openai.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
    assert stateful.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        await clients.openai.responses.retrieve("resp_1")
