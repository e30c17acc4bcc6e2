"""The HTTP server: vLLM's routes over one engine, and /sim/state for tests."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

from aiohttp import web

from duplex_connector.contract import Header, Params

from . import messages, responses
from .answer import Answer
from .assembly import Process
from .body import ApiError, Asked, ask, load, model_of, prompt_of_chat
from .engine import EngineDeadError, LoadFailedError
from .inspection import state
from .pieces import merged, pieces
from .request import EngineRequest
from .sequence import SequenceKV

logger = logging.getLogger(__name__)

_LARGEST_BODY: Final = 256 << 20
_FAILED: Final = "Internal server error"
_WATCHDOG_SECONDS: Final = 5.0
"""How long vLLM's API process outlives its engine at most (entrypoints/launchers/launcher.py)."""


class Api:
    """The routes."""

    def __init__(self, process: Process) -> None:
        self._process, self._engine, self._settings = process, process.engine, process.settings
        self._created = int(time.time())
        self._open = 0

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=_LARGEST_BODY, middlewares=[_errors])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.completions),
                web.post("/v1/responses", self.responses),
                web.post("/v1/messages", self.messages),
                web.post("/v1/messages/count_tokens", self.count_tokens),
                web.get("/v1/models", self.models),
                web.post("/tokenize", self.tokenize),
                web.post("/detokenize", self.detokenize),
                web.get("/health", self.health),
                web.get("/ping", self.health),
                web.post("/ping", self.health),
                web.get("/version", self.version),
                web.get("/load", self.load),
                web.get("/metrics", self.metrics),
                web.get("/sim/state", self.state),
            ]
        )
        return app

    # -- generation --------------------------------------------------------------------------------------------------

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._generate(request, chat=True)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._generate(request, chat=False)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/responses."""
        return await self._generate(request, chat=True, convert=responses.to_chat, kind=responses.ResponsesAnswer)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages."""
        return await self._generate(request, chat=True, convert=messages.to_chat, kind=messages.MessagesAnswer)

    async def count_tokens(self, request: web.Request) -> web.Response:
        """POST /v1/messages/count_tokens."""
        body = load(await request.read())
        model_of(body, self._settings)
        prompt = prompt_of_chat(messages.to_chat(body, counting=True), self._settings, self._process.tokenizer)
        count = len(prompt)
        return web.json_response({"input_tokens": count, "context_management": {"original_input_tokens": count}})

    async def _generate(
        self,
        request: web.Request,
        *,
        chat: bool,
        convert: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        kind: type[Answer] = Answer,
    ) -> web.StreamResponse:
        base = request.headers.get(Header.REQUEST_ID) or secrets.token_hex(16)
        public = f"chatcmpl-{base}" if chat else f"cmpl-{base}"
        body = load(await request.read())
        try:
            asked = ask(convert(body), self._settings, self._process.tokenizer, chat=chat)
        except ApiError:
            params = body.get(Params.FIELD)
            if isinstance(params, dict):
                self._engine.reject(params)
            raise
        answer = kind(
            body,
            asked,
            public,
            self._process.tokenizer,
            details=self._settings.token_details,
            streams_params=self._settings.streams_params,
        )
        self._open += 1
        try:
            return await self._answer(request, answer, self._engine_requests(asked, public))
        finally:
            self._open -= 1

    def _engine_requests(self, asked: Asked, public: str) -> list[EngineRequest]:
        """Return one request a sequence, each with its own copy of the params, as vLLM makes them."""
        found = []
        for number, prompt in enumerate(asked.prompts):
            inner = f"{public}-{secrets.token_hex(4)}" if asked.chat else f"{public}-{number}-{secrets.token_hex(4)}"
            for index in range(asked.count):
                kv = SequenceKV(self._engine.pool, self._process.layout, prompt, adapter=asked.adapter, salt=asked.salt)
                name = inner if asked.count == 1 else f"{index}_{inner}"
                params = copy.deepcopy(asked.params)
                found.append(EngineRequest(name, kv, len(prompt), copy.copy(asked.sampling), params=params))
        return found

    async def _answer(
        self, request: web.Request, answer: Answer, engine_requests: list[EngineRequest]
    ) -> web.StreamResponse:
        async with AsyncExitStack() as stack:
            choices = []
            for index, each in enumerate(engine_requests):
                tokens = await stack.enter_async_context(aclosing(self._engine.generate(each)))
                choices.append(pieces(tokens, answer.asked, self._process.tokenizer, index))
            parts = await stack.enter_async_context(aclosing(merged(choices)))
            if not answer.asked.stream:
                whole = [part async for part in parts]
                return web.json_response(answer.whole(whole, engine_requests[0].cached))
            response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
            first = None if answer.OPENS_EARLY else await anext(parts)
            await response.prepare(request)
            await response.write(answer.opening())
            if first is not None:
                await response.write(answer.chunk(first))
            async for part in parts:
                data = answer.chunk(part)
                if data:
                    await response.write(data)
            await response.write(answer.closing(engine_requests[0].cached))
            await response.write_eof()
            return response

    # -- the rest ----------------------------------------------------------------------------------------------------

    async def models(self, _: web.Request) -> web.Response:
        """GET /v1/models."""
        cards = [self._card(name, self._settings.model, None) for name in self._settings.names]
        base = self._settings.names[0]
        cards += [self._card(name, path, base) for name, path in self._settings.adapters.items()]
        return web.json_response({"object": "list", "data": cards})

    def _card(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": self._settings.max_length if parent is None else None,
            "permission": [],
        }

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize, of a prompt or of messages."""
        body = load(await request.read())
        model_of(body, self._settings)
        if "messages" in body:
            tokens = prompt_of_chat(body, self._settings, self._process.tokenizer)
        elif isinstance(body.get("prompt"), str):
            tokens = self._process.tokenizer.encode(body["prompt"])
        else:
            raise ApiError("give prompt (a string) or messages", param="prompt")
        answer = {"count": len(tokens), "max_model_len": self._settings.max_length, "tokens": tokens}
        return web.json_response({**answer, "token_strs": None})

    async def detokenize(self, request: web.Request) -> web.Response:
        """POST /detokenize."""
        body = load(await request.read())
        tokens, size = body.get("tokens"), self._process.tokenizer.size
        if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token < size for token in tokens):
            raise ApiError("tokens must be a list of token ids of the vocabulary", param="tokens")
        return web.json_response({"prompt": self._process.tokenizer.decode(tokens)})

    async def health(self, _: web.Request) -> web.Response:
        """GET /health: 200, or 503 once the engine is dead."""
        return web.Response(status=200 if self._engine.dead is None else 503)

    async def version(self, _: web.Request) -> web.Response:
        """GET /version."""
        return web.json_response({"version": self._settings.version})

    async def load(self, _: web.Request) -> web.Response:
        """GET /load."""
        return web.json_response({"server_load": self._open})

    async def metrics(self, _: web.Request) -> web.Response:
        """GET /metrics."""
        return web.Response(text=self._process.metrics.exposition())

    async def state(self, _: web.Request) -> web.Response:
        """GET /sim/state: blocks, holds and broken rules, for tests."""
        return web.json_response(state(self._engine))


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer errors in vLLM's shape; a failed load says no more than that."""
    try:
        return await handler(request)
    except ApiError as error:
        return _refusal(request, error)
    except (EngineDeadError, LoadFailedError) as error:
        message = str(error) if isinstance(error, EngineDeadError) else _FAILED
        return _refusal(request, ApiError(message, status=500, kind="InternalServerError"))
    except web.HTTPException as error:
        shaped = ApiError(error.reason, status=error.status, kind=error.reason.replace(" ", ""))
        return _refusal(request, shaped, _kept(error))


def _refusal(request: web.Request, error: ApiError, headers: dict[str, str] | None = None) -> web.Response:
    body = messages.error_body(error) if request.path.startswith("/v1/messages") else error.body()
    return web.json_response(body, status=error.status, headers=headers)


def _kept(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


async def run(process: Process, stop: asyncio.Event) -> int:
    """Serve until `stop` is set, then drain for `--shutdown-timeout` seconds; return the exit status.

    A dead engine ends the process, as vLLM's watchdog does, within five seconds.
    """
    settings = process.settings
    runner = web.AppRunner(Api(process).application(), handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    await process.start()
    await web.TCPSite(runner, settings.host, settings.port, reuse_address=True).start()
    logger.info("serving %s on %s:%d", settings.names[0], settings.host, settings.port)
    try:
        status = await _watch(process, stop)
        if status == 0 and settings.shutdown_timeout > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.engine.drained(), settings.shutdown_timeout)
        return status
    finally:
        await runner.cleanup()
        await process.close()


async def _watch(process: Process, stop: asyncio.Event) -> int:
    death = asyncio.create_task(process.engine.wait_dead())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({death, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _WATCHDOG_SECONDS)
            return 1
        return 0
    finally:
        for task in (death, stopped):
            task.cancel()
