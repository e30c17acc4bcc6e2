"""A router and simulated engines in one process and one event loop: what the engines hold can be looked at directly."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from duplex_connector.config import kv_transfer_argument
from duplex_connector.contract import ConnectorKind, Env, Role
from duplex_router.ledger.ledger import Entry
from duplex_router.ledger.reading import read_history
from duplex_router.service import Service
from duplex_router.wire.inference import Endpoint, parse_inference
from duplex_simulator.assembly import Process, assemble
from duplex_simulator.body import prompt_of_chat
from duplex_simulator.clock import SystemClock
from duplex_simulator.server import Api
from duplex_simulator.settings import parse

from .rig import MODEL, Message, router, transfer_settings, until

FLAGS = ("--enable-prompt-tokens-details", "--no-enable-prefix-caching", "--sim-blocks", "16384")


@dataclass
class NearEngine:
    """One simulated engine, in this process."""

    process: Process
    url: str

    def broken_rules(self) -> int:
        engine = self.process.engine
        return engine.corrupt_answers + engine.freed_reads

    def holds(self) -> int:
        connector = self.process.engine.connector
        return len(connector.holds) if connector is not None else 0


@contextlib.asynccontextmanager
async def near_engine(role: Role, kind: ConnectorKind, *flags: str) -> AsyncIterator[NearEngine]:
    """Run an engine on loopback."""
    transfer = kv_transfer_argument(role, transfer_settings(kind))
    environment = {Env.SIDE_CHANNEL_HOST: "127.0.0.1", Env.SIDE_CHANNEL_PORT: "0"}
    process = assemble(
        parse(["serve", MODEL, *FLAGS, *flags, "--kv-transfer-config", transfer], environment), SystemClock()
    )
    runner = web.AppRunner(Api(process).application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    await process.start()
    try:
        yield NearEngine(process, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()
        await process.close()


@dataclass
class Answered:
    """One turn as its client saw it: the answer's text, the tokens of prompt and answer, and what was pulled."""

    text: str
    prompt: list[int]
    tokens: list[int]
    pulled: int
    reuse: str


@dataclass
class NearSite:
    """A router over one prefill and one decode engine, and a client."""

    prefill: NearEngine
    decode: NearEngine
    service: Service
    session: aiohttp.ClientSession
    held_ids: dict[str, list[int]] = field(default_factory=dict)

    def broken_rules(self) -> int:
        """Return how often an engine read KV that was wrong, or no longer there."""
        return self.prefill.broken_rules() + self.decode.broken_rules()

    def prompt_ids(self, messages: list[Message], more: dict[str, Any]) -> list[int]:
        process = self.prefill.process
        return prompt_of_chat({"messages": messages, **more}, process.settings, process.tokenizer)

    async def ask(self, tenant: str, name: str, body: dict[str, Any]) -> Answered:
        """Send a chat turn; `name` is unique, and the hold that comes of it can be found by it."""
        fields = {"model": MODEL, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **body}
        headers = {"authorization": tenant, "x-request-id": name}
        url = f"http://127.0.0.1:{self.service.port}/v1/chat/completions"
        async with self.session.post(url, data=json.dumps(fields), headers=headers) as answer:
            found = await answer.json()
            assert answer.status == 200, found
            counts = dict(part.split("=") for part in answer.headers["x-duplex-tokens"].split(","))
            choice = found["choices"][0]
            prompt, tokens = found["prompt_token_ids"], choice["token_ids"]
            self.held_ids[name] = [*prompt, *tokens]
            text = choice["message"]["content"] or ""
            return Answered(text, prompt, tokens, int(counts["pulled"]), answer.headers["x-duplex-reuse"])

    def shares(self, prompt: list[int], body: dict[str, Any] | None = None) -> list[int]:
        """Return how many tokens each hold shares with a prompt, from token ids.

        With `body`, the request that the prompt is of: only of those holds that share most of its content.
        """
        entries = [entry for entry in self.service.ledger if not entry.retired]
        if body is not None:
            request = parse_inference(Endpoint.CHAT, json.dumps({"model": MODEL, **body}).encode())
            history = read_history(request, proved=True)
            assert history is not None
            depths = [len(set(entry.marks) & set(history.marks)) for entry in entries]
            entries = [entry for entry, depth in zip(entries, depths, strict=True) if depth == max(depths)]
        return [common(self._ids(entry), prompt) for entry in entries]

    def _ids(self, entry: Entry) -> list[int]:
        name = entry.handle.request_id.removeprefix("chatcmpl-").rpartition("-")[0]
        return self.held_ids[name][: entry.handle.tokens]


def common(one: list[int], other: list[int]) -> int:
    """Return how many tokens two lists share from their beginning."""
    pairs = zip(one, other, strict=False)
    return next((index for index, (first, second) in enumerate(pairs) if first != second), min(len(one), len(other)))


@contextlib.asynccontextmanager
async def near_site(tmp_path: Path, kind: ConnectorKind, *flags: str) -> AsyncIterator[NearSite]:
    """Run a router over engines with these flags."""
    async with contextlib.AsyncExitStack() as stack:
        prefill, decode = [await stack.enter_async_context(near_engine(role, kind, *flags)) for role in Role]
        document = {
            "model": {"name": MODEL, "blockSize": 16, "connector": kind.value},
            "policy": {"recomputeThresholdTokens": 1},
            "revisions": [{"name": "r1", "engines": {"prefill": [prefill.url], "decode": [decode.url]}}],
            "canary": {"enabled": False},
        }
        under_test = await stack.enter_async_context(router(tmp_path, document))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        if kind is ConnectorKind.STOCK:
            await until(lambda: under_test.service.core.templates.probed("r1"))
        yield NearSite(prefill, decode, under_test.service, session)
