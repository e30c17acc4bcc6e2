"""The HTTP surface: vLLM's routes, shapes and refusals, with the openai client and by hand."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from aiohttp.test_utils import TestClient, TestServer

from duplex_connector.contract import ConnectorKind, Metric, Params
from duplex_simulator.server import Api
from duplex_simulator.tokenizer import CORRUPT_MARK

from .clocks import VirtualClock
from .nodes import node

MESSAGES = [{"role": "user", "content": "What does the cache hold?"}]


@contextlib.asynccontextmanager
async def serving(*flags: str, kind: ConnectorKind | None = None) -> AsyncIterator[TestClient[Any, Any]]:
    async with (
        node(VirtualClock(), "--enable-prompt-tokens-details", *flags, kind=kind) as side,
        TestClient(TestServer(Api(side.process).application())) as client,
    ):
        yield client


async def _post(client: TestClient[Any, Any], path: str, body: Any) -> tuple[int, dict[str, Any]]:
    async with client.post(path, json=body) as answer:
        return answer.status, await answer.json()


async def test_the_openai_client_holds_a_conversation() -> None:
    async with serving() as http, openai.AsyncOpenAI(base_url=f"{http.make_url('/v1')}", api_key="none") as client:
        said: list[Any] = list(MESSAGES)
        for _ in range(3):
            whole = await client.chat.completions.create(model="model", messages=said)
            stream = await client.chat.completions.create(model="model", messages=said, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == whole.choices[0].message.content
            assert whole.choices[0].finish_reason == "stop"
            assert whole.usage is not None
            assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
            said += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]


async def test_chat_equals_completion_of_the_rendered_prompt() -> None:
    async with serving() as client:
        _, tokens = await _post(client, "/tokenize", {"model": "model", "messages": MESSAGES})
        _, chat = await _post(client, "/v1/chat/completions", {"messages": MESSAGES, "return_token_ids": True})
        body = {"model": "model", "prompt": tokens["tokens"], "max_tokens": 500, "return_token_ids": True}
        _, completion = await _post(client, "/v1/completions", body)
        assert chat["choices"][0]["token_ids"] == completion["choices"][0]["token_ids"]
        assert chat["prompt_token_ids"] == tokens["tokens"]
        _, text = await _post(client, "/detokenize", {"tokens": tokens["tokens"]})
        assert text["prompt"] == "<|im_start|>user\nWhat does the cache hold?<|im_end|>\n<|im_start|>assistant\n"


async def test_a_cached_prompt_shows_in_usage_and_metrics() -> None:
    async with serving() as client:
        body = {"prompt": list(range(300, 400)), "max_tokens": 4}
        await _post(client, "/v1/completions", body)
        _, again = await _post(client, "/v1/completions", body)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
        async with client.get("/metrics") as answer:
            text = await answer.text()
        common = 'engine="0",model_name="model"'
        assert f'{Metric.PROMPT_TOKENS_BY_SOURCE}_total{{{common},source="local_cache_hit"}} 96.0' in text
        assert f"{Metric.KV_USAGE}{{{common}}} 0.0" in text
        assert f"sim_corrupt_answers_total{{{common}}} 0.0" in text


async def test_stop_strings_cut_the_text_and_leave_no_params() -> None:
    alone = {Params.DO_REMOTE_PREFILL: False, Params.DO_REMOTE_DECODE: False}
    async with serving(kind=ConnectorKind.STOCK) as client:
        body = {"prompt": list(range(300, 400)), "max_tokens": 20, Params.FIELD: alone}
        _, whole = await _post(client, "/v1/completions", body)
        text = whole["choices"][0]["text"]
        stop = text[20:25]
        _, stopped = await _post(client, "/v1/completions", {**body, "stop": stop})
        choice = stopped["choices"][0]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (
            text[: text.index(stop)],
            "stop",
            stop,
        )
        assert (whole[Params.FIELD] is None, stopped[Params.FIELD]) == (False, None)


@pytest.mark.parametrize(("version", "streams"), [("0.32.0", False), ("0.33.0", True)])
async def test_only_0_33_streams_params(version: str, streams: bool) -> None:  # noqa: FBT001 - a pytest parameter
    alone = {Params.DO_REMOTE_PREFILL: False, Params.DO_REMOTE_DECODE: False}
    body = {"messages": MESSAGES, "stream": True, Params.FIELD: alone}
    async with (
        serving("--sim-version", version, kind=ConnectorKind.STOCK) as client,
        client.post("/v1/chat/completions", json=body) as answer,
    ):
        assert (Params.FIELD in await answer.text()) is streams


async def test_the_stripping_template_thinks_and_forgets() -> None:
    async with serving("--sim-template", "strips-thinking") as client:
        _, first = await _post(client, "/v1/chat/completions", {"messages": MESSAGES})
        content = first["choices"][0]["message"]["content"]
        assert content.startswith("<think>")
        history = [*MESSAGES, {"role": "assistant", "content": content}, {"role": "user", "content": "why"}]
        _, tokens = await _post(client, "/tokenize", {"messages": history})
        _, text = await _post(client, "/detokenize", {"tokens": tokens["tokens"]})
        assert "<think>" not in text["prompt"]


async def test_prompt_token_ids_of_the_prefill_leg_replace_the_messages() -> None:
    async with serving(kind=ConnectorKind.STOCK) as client:
        params = {Params.DO_REMOTE_PREFILL: False, "prompt_token_ids": list(range(300, 340))}
        body = {"messages": MESSAGES, "return_token_ids": True, Params.FIELD: params}
        _, answer = await _post(client, "/v1/chat/completions", body)
        assert answer["prompt_token_ids"] == list(range(300, 340))


CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        (CHAT, {"messages": MESSAGES, "model": "other"}, 404, "does not exist"),
        (CHAT, {"messages": "hello"}, 400, "list of objects"),
        (CHAT, {"messages": []}, 400, "empty"),
        (CHAT, {"messages": MESSAGES, "max_tokens": 0}, 400, "max_tokens"),
        (CHAT, {"messages": MESSAGES, "use_beam_search": True}, 400, "not simulated"),
        (CHAT, {"messages": MESSAGES, "top_logprobs": 2}, 400, "logprobs"),
        (CHAT, {"messages": MESSAGES, "n": 2, "temperature": 0}, 400, "greedy"),
        (CHAT, {"messages": MESSAGES, "stream_options": {"include_usage": True}}, 400, "stream=True"),
        (CHAT, {"messages": MESSAGES, "cache_salt": ""}, 400, "cache_salt"),
        (CHAT, {"messages": MESSAGES, "min_tokens": 5, "max_tokens": 1}, 400, "min_tokens"),
        (CHAT, {"messages": MESSAGES, Params.FIELD: [1]}, 400, "must be an object"),
        (PLAIN, {"prompt": [10**9]}, 400, "out of vocabulary"),
        (PLAIN, {"prompt": ""}, 400, "empty"),
        (PLAIN, {"prompt": ["a", ""]}, 400, "empty"),
        (PLAIN, {"prompt": "x", "max_tokens": 10**6}, 400, "maximum context length"),
        (PLAIN, {"prompt": "x", "stop": [""]}, 400, "stop"),
        (PLAIN, [1], 400, "JSON object"),
        ("/tokenize", {}, 400, "prompt"),
        ("/detokenize", {"tokens": [-1]}, 400, "vocabulary"),
    ],
)
async def test_what_cannot_be_answered_is_refused(path: str, body: Any, status: int, says: str) -> None:
    async with serving() as client:
        seen, answer = await _post(client, path, body)
        assert (seen, answer["error"]["code"]) == (status, status)
        assert says in answer["error"]["message"]


async def test_broken_json_and_unknown_routes() -> None:
    async with serving() as client:
        async with client.post(CHAT, data=b"{") as answer:
            assert (answer.status, (await answer.json())["error"]["type"]) == (400, "BadRequestError")
        async with client.get("/nothing") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, 404)
        async with client.get(CHAT) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")


async def test_adapters_are_models_of_their_own() -> None:
    async with serving("--enable-lora", "--lora-modules", "tuned=/adapters/tuned") as client:
        async with client.get("/v1/models") as answer:
            cards = (await answer.json())["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [("model", None), ("tuned", "model")]
        body = {"prompt": list(range(300, 400)), "max_tokens": 8}
        _, base = await _post(client, PLAIN, {**body, "model": "model"})
        _, tuned = await _post(client, PLAIN, {**body, "model": "tuned"})
        assert base["choices"][0]["text"] != tuned["choices"][0]["text"]


async def test_small_routes() -> None:
    async with serving() as client:
        for path in ("/health", "/ping"):
            async with client.get(path) as answer:
                assert answer.status == 200
        async with client.get("/version") as answer:
            assert await answer.json() == {"version": "0.33.0"}
        async with client.get("/load") as answer:
            assert await answer.json() == {"server_load": 0}


async def test_the_state_shows_holds_and_the_mark_is_never_in_a_right_answer() -> None:
    alone = {Params.DO_REMOTE_PREFILL: False, Params.DO_REMOTE_DECODE: False}
    async with serving(kind=ConnectorKind.STOCK) as client:
        _, answer = await _post(client, CHAT, {"messages": MESSAGES, Params.FIELD: alone})
        assert CORRUPT_MARK not in answer["choices"][0]["message"]["content"]
        async with client.get("/sim/state") as reply:
            state = await reply.json()
        assert [hold["kind"] for hold in state["holds"]] == ["turn"]
        assert state["holds"][0]["requestId"] == answer[Params.FIELD][Params.REQUEST_ID]
        assert state["blocks"]["used"] == len(answer[Params.FIELD][Params.BLOCK_IDS][0])
        assert (state["corruptAnswers"], state["dead"]) == (0, None)
