"""Simulated engines on loopback, and routers before them, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

from duplex_connector.config import TransferSettings, kv_transfer_argument
from duplex_connector.contract import Backend, ConnectorKind, Env, Role
from duplex_router.http.settings import CredentialSettings, ServerSettings
from duplex_router.options import SeenSettings
from duplex_router.service import Service, ServiceSettings
from duplex_router.source.file import FileSource
from duplex_router.store.address import StoreSettings
from duplex_router.turn.core import LegSettings

MODEL = "model"
READY_SECONDS = 90.0
CORRUPT = "CORRUPT"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback, http
        return json.load(answer)


@dataclass
class SimulatedEngine:
    """One simulator process."""

    url: str
    process: subprocess.Popen[bytes]
    start: Callable[[], subprocess.Popen[bytes]]

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = fetch(self.url + "/sim/state")
        return found

    def held(self) -> list[str]:
        return [hold["requestId"] for hold in self.state()["holds"]]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    def restart(self) -> None:
        """Start it anew on the same ports, as kubelet does with a container."""
        self.kill()
        self.process = self.start()
        wait_ready([self])


def transfer_settings(kind: ConnectorKind, ttl: int = 480) -> TransferSettings:
    return TransferSettings(
        connector=kind,
        backend=Backend.UCX,
        buffer_device="cpu",
        role_is_both=True,
        lease_seconds=30,
        bidirectional=True,
        ttl_seconds=ttl,
        threshold_tokens=64,
    )


def launch(
    role: Role | None, kind: ConnectorKind = ConnectorKind.GUARDED, *flags: str, ttl: int = 480
) -> SimulatedEngine:
    """Start an engine; without a role it is a plain server, the reference that answers are compared with."""
    port, side = free_port(), free_port()
    command = [sys.executable, "-m", "duplex_simulator", "serve", MODEL, "--port", str(port)]
    command += ["--enable-prompt-tokens-details", *flags]
    if role is not None:
        command += ["--kv-transfer-config", kv_transfer_argument(role, transfer_settings(kind, ttl))]
    env = {**os.environ, Env.SIDE_CHANNEL_HOST: "127.0.0.1", Env.SIDE_CHANNEL_PORT: str(side)}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    return SimulatedEngine(f"http://127.0.0.1:{port}", start(), start)


def wait_ready(engines: Sequence[SimulatedEngine]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    for engine in engines:
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(engine.url + "/health", timeout=2):  # noqa: S310 - loopback, http
                break
            assert engine.process.poll() is None, "a simulated engine ended before it was ready"
            assert time.monotonic() < deadline, "a simulated engine is not ready in time"
            time.sleep(0.05)


@contextlib.contextmanager
def running(*engines: SimulatedEngine) -> Iterator[None]:
    try:
        wait_ready(engines)
        yield
    finally:
        for engine in engines:
            with contextlib.suppress(ProcessLookupError):
                engine.signal(signal.SIGCONT)
            engine.kill()


@dataclass
class Engines:
    """The engines of one revision."""

    kind: ConnectorKind
    prefill: list[SimulatedEngine]
    decode: list[SimulatedEngine]
    plain: SimulatedEngine | None = None

    @property
    def all(self) -> list[SimulatedEngine]:
        return [*self.prefill, *self.decode]

    def holds(self) -> int:
        return sum(len(engine.held()) for engine in self.all)

    def corrupt(self) -> int:
        return sum(engine.state()["corruptAnswers"] + engine.state()["freedReads"] for engine in self.all)

    def document(self, **policy: Any) -> dict[str, Any]:
        urls = {"prefill": [each.url for each in self.prefill], "decode": [each.url for each in self.decode]}
        return {
            "model": {"name": MODEL, "blockSize": 16, "connector": self.kind.value},
            "policy": {"recomputeThresholdTokens": 1, **policy},
            "revisions": [{"name": "r1", "engines": urls}],
            "canary": {"enabled": False},
        }


@dataclass
class Router:
    """A router under test."""

    service: Service
    file: Path
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.service.port}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.service.admin_port}"

    def client(self, key: str = "key") -> openai.AsyncOpenAI:
        made = openai.AsyncOpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=60)
        self.clients.append(made)
        return made

    def write(self, document: object) -> None:
        self.file.write_text(json.dumps(document))


@contextlib.asynccontextmanager
async def router(
    tmp_path: Path,
    document: object,
    *,
    legs: LegSettings | None = None,
    server: ServerSettings | None = None,
    store: StoreSettings | None = None,
    credentials: CredentialSettings | None = None,
    seen: SeenSettings | None = None,
) -> AsyncIterator[Router]:
    """Run a router over a fleet document until the block ends; ends it as SIGTERM would."""
    file = tmp_path / f"fleet-{secrets.token_hex(4)}.json"
    if document is not None:
        file.write_text(json.dumps(document))
    settings = ServiceSettings(
        host="127.0.0.1",
        port=0,
        admin_port=0,
        drain_seconds=5,
        legs=legs or LegSettings(),
        server=server or ServerSettings(),
        store=store,
        credentials=credentials or CredentialSettings(),
        seen=seen or SeenSettings(),
    )
    service = Service(settings, lambda fleet: FileSource(fleet, file))
    await service.start()
    made = Router(service, file)
    try:
        if document is not None:
            await until(lambda: service.fleet.document is not None)
        yield made
    finally:
        for client in made.clients:
            await client.close()
        await service.stop()


async def until(true: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait until something is so; fail if it is not in time."""
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(true):
        assert time.monotonic() < deadline, "did not come about in time"
        await asyncio.sleep(0.02)


@dataclass
class Said:
    """One answer: its text, and what the router says of it."""

    text: str
    reuse: str
    tokens: dict[str, int]
    finish: str | None = None


Message = dict[str, Any]


def user(text: str, words: int = 60) -> Message:
    return {"role": "user", "content": f"{text} " + "word " * words}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def fresh() -> list[Message]:
    """Return the beginning of a conversation that no other test had."""
    return [{"role": "system", "content": f"conversation {secrets.token_hex(8)} " + "be brief " * 40}]


async def say(
    client: openai.AsyncOpenAI, messages: list[Message], *, stream: bool = False, tokens: int = 100, **more: Any
) -> Said:
    """Send one turn and read the whole answer. Replies do not end by themselves, so that there is something to pull."""
    extra = {"ignore_eos": True, **more.pop("extra_body", {})}
    create: Any = client.chat.completions.with_raw_response.create  # its overloads do not fit what is built here
    raw = await create(
        model=MODEL, messages=messages, max_tokens=tokens, stream=stream, temperature=0, extra_body=extra, **more
    )
    parsed = raw.parse()
    if stream:
        parts, finish = [], None
        async for chunk in parsed:
            assert getattr(chunk, "kv_transfer_params", None) is None
            for choice in chunk.choices:
                parts.append(choice.delta.content or "")
                finish = choice.finish_reason or finish
        text = "".join(parts)
    else:
        assert getattr(parsed, "kv_transfer_params", None) is None
        text, finish = parsed.choices[0].message.content, parsed.choices[0].finish_reason
    counts = dict(part.split("=") for part in raw.headers["x-duplex-tokens"].split(","))
    return Said(text, raw.headers["x-duplex-reuse"], {name: int(value) for name, value in counts.items()}, finish)


async def say_plain(engines: Engines, messages: list[Message], *, tokens: int = 100, **extra: Any) -> str:
    """Return what one plain server answers."""
    assert engines.plain is not None
    async with openai.AsyncOpenAI(base_url=engines.plain.url + "/v1", api_key="x") as client:
        create: Any = client.chat.completions.create
        answer = await create(
            model=MODEL,
            messages=messages,
            max_tokens=tokens,
            temperature=0,
            extra_body={"ignore_eos": True, **extra},
        )
        text: str = answer.choices[0].message.content
        return text
