"""Every API over one model: the same words, whichever client asks, streamed or not, with tools and stops."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from aiohttp.test_utils import TestClient

from duplex_simulator.calls import Call, CallReader

from .test_http import serving

QUESTION = "What does the cache hold?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}


async def _chat(http: TestClient[Any, Any], **more: Any) -> Any:
    async with openai.AsyncOpenAI(base_url=f"{http.make_url('/v1')}", api_key="none") as client:
        messages = more.pop("messages", [{"role": "user", "content": QUESTION}])
        answer = await client.chat.completions.create(model="model", messages=messages, max_tokens=200, **more)
        return [chunk async for chunk in answer] if more.get("stream") else answer


async def test_all_apis_say_the_same() -> None:
    async with serving() as http:
        truth = (await _chat(http)).choices[0].message.content
        base = str(http.make_url("/"))
        async with openai.AsyncOpenAI(base_url=base + "v1", api_key="x") as client:
            whole = await client.responses.create(model="model", input=QUESTION, max_output_tokens=200)
            assert (whole.output_text, whole.status) == (truth, "completed")
            kinds, texts = [], []
            async for event in await client.responses.create(
                model="model", input=QUESTION, max_output_tokens=200, stream=True
            ):
                kinds.append(event.type)
                if event.type == "response.output_text.delta":
                    texts.append(event.delta)
            assert "".join(texts) == truth
            assert (kinds[:2], kinds[-1]) == (["response.created", "response.in_progress"], "response.completed")
            assert event.response.output_text == truth
        async with anthropic.AsyncAnthropic(base_url=base, api_key="x") as claude:
            asked: Any = {
                "model": "model",
                "max_tokens": 200,
                "messages": [{"role": "user", "content": QUESTION}],
            }
            message = await claude.messages.create(**asked)
            assert (message.content[0].text, message.stop_reason) == (truth, "end_turn")
            async with claude.messages.stream(**asked) as stream:
                assert await stream.get_final_text() == truth
                final = await stream.get_final_message()
            assert final.usage.output_tokens == message.usage.output_tokens
            asked.pop("max_tokens")
            counted = await claude.messages.count_tokens(**asked)
            usage = message.usage
            assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


async def test_a_named_tool_is_called_and_its_result_answered_in_words() -> None:
    async with serving() as http:
        said: list[Any] = [{"role": "user", "content": "Use get_weather for today."}]
        whole = await _chat(http, messages=said, tools=[TOOL])
        assert whole.choices[0].finish_reason == "tool_calls"
        call = whole.choices[0].message.tool_calls[0]
        arguments = json.loads(call.function.arguments)
        assert (call.function.name, arguments.keys(), type(arguments["days"])) == ("get_weather", {"city", "days"}, int)
        parts = {"name": "", "arguments": "", "finish": ""}
        for chunk in await _chat(http, messages=said, tools=[TOOL], stream=True):
            for delta in chunk.choices[0].delta.tool_calls or []:
                parts["name"] += delta.function.name or ""
                parts["arguments"] += delta.function.arguments or ""
            parts["finish"] = chunk.choices[0].finish_reason or parts["finish"]
        assert parts == {"name": "get_weather", "arguments": call.function.arguments, "finish": "tool_calls"}
        said += [whole.choices[0].message.model_dump(exclude_none=True)]
        said += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        last = await _chat(http, messages=said, tools=[TOOL])
        assert last.choices[0].message.tool_calls is None
        assert last.choices[0].message.content


async def test_anthropic_and_responses_call_tools_too() -> None:
    async with serving() as http:
        base = str(http.make_url("/"))
        async with anthropic.AsyncAnthropic(base_url=base, api_key="x") as claude:
            asked: Any = {
                "model": "model",
                "max_tokens": 200,
                "messages": [{"role": "user", "content": "Anything."}],
                "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
                "tool_choice": {"type": "any"},
            }
            message = await claude.messages.create(**asked)
            assert (message.stop_reason, message.content[0].name) == ("tool_use", "get_weather")
            async with claude.messages.stream(**asked) as stream:
                streamed = await stream.get_final_message()
            assert streamed.content[0].input == message.content[0].input
        async with openai.AsyncOpenAI(base_url=base + "v1", api_key="x") as client:
            tool: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}
            whole = await client.responses.create(model="model", input="Use get_weather.", tools=[tool])
            assert whole.output[0].type == "function_call"
            events = [
                event
                async for event in await client.responses.create(
                    model="model", input="Use get_weather.", tools=[tool], stream=True
                )
            ]
            assert events[-1].response.output[0].arguments == whole.output[0].arguments
            assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_several_choices_and_prompts() -> None:
    async with serving() as http:
        truth = (await _chat(http)).choices[0].message.content
        whole = await _chat(http, n=3)
        assert [(choice.index, choice.message.content) for choice in whole.choices] == [(i, truth) for i in range(3)]
        texts = ["", "", ""]
        for chunk in await _chat(http, n=3, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert texts == [truth] * 3
        async with openai.AsyncOpenAI(base_url=f"{http.make_url('/v1')}", api_key="x") as client:
            one = await client.completions.create(model="model", prompt="the cache", max_tokens=8)
            two = await client.completions.create(model="model", prompt=["a line", "the cache"], max_tokens=8)
            assert two.choices[1].text == one.choices[0].text


@pytest.mark.parametrize("stream", [True, False])
async def test_log_probabilities_cover_the_text(stream: bool) -> None:  # noqa: FBT001 - a parameter of the test
    async with serving() as http:
        answer = await _chat(http, logprobs=True, top_logprobs=2, stream=stream)
        entries, text = [], ""
        if stream:
            for chunk in answer:
                text += chunk.choices[0].delta.content or ""
                entries += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
        else:
            text, entries = answer.choices[0].message.content, answer.choices[0].logprobs.content
        assert "".join(entry.token for entry in entries).removesuffix("<|im_end|>") == text
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)


async def test_a_stop_sequence_ends_an_answer_in_each_apis_words() -> None:
    async with serving() as http:
        word = (await _chat(http)).choices[0].message.content.split()[5]
        stopped = (await _chat(http, stop=[word])).choices[0]
        assert (stopped.finish_reason, stopped.model_extra["stop_reason"]) == ("stop", word)
        async with anthropic.AsyncAnthropic(base_url=str(http.make_url("/")), api_key="x") as claude:
            message = await claude.messages.create(
                model="model",
                max_tokens=200,
                messages=[{"role": "user", "content": QUESTION}],
                stop_sequences=[word],
            )
            assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)
            assert message.content[0].text == stopped.message.content


async def test_errors_have_each_apis_shape() -> None:
    async with serving() as http:
        async with anthropic.AsyncAnthropic(base_url=str(http.make_url("/")), api_key="x", max_retries=0) as claude:
            with pytest.raises(anthropic.NotFoundError) as error:
                await claude.messages.create(model="other", max_tokens=5, messages=[{"role": "user", "content": "x"}])
            body: Any = error.value.body
            assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
        async with openai.AsyncOpenAI(base_url=f"{http.make_url('/v1')}", api_key="x", max_retries=0) as client:
            with pytest.raises(openai.NotFoundError):
                await client.responses.create(model="model", input="x", previous_response_id="resp_1")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_read_from_text_in_any_pieces(size: int) -> None:
    calls = [Call("f", '{"a": 1}'), Call("g", "{}")]
    text = "first" + "".join(call.spelt() for call in calls) + "\nlast"
    reader = CallReader()
    found: list[Any] = []
    for start in range(0, len(text), size):
        found += reader.feed(text[start : start + size], last=start + size >= len(text))
    words = "".join(part for part in found if isinstance(part, str))
    assert words == "first\nlast"
    assert [part for part in found if not isinstance(part, str)] == list(enumerate(calls))
