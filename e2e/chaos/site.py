"""The processes under test: engines behind relays, one router, and the fleet file between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from duplex_connector.config import TransferSettings, kv_transfer_argument
from duplex_connector.contract import Backend, ConnectorKind, Env, Role

from .loopback import HOST, free_port
from .oracle import MODEL
from .relay import Relay

START_SECONDS = 120.0
TTL_SECONDS = 60
LEASE_SECONDS = 30


async def answers(port: int, session: aiohttp.ClientSession, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server of ours is healthy. Raises RuntimeError where it does not get there."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(f"http://{HOST}:{port}/health") as answer:
                if answer.status == 200:  # noqa: PLR2004 - OK
                    return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"the server on port {port} did not start; see the logs")


@dataclass(eq=False)
class Engine:
    """One simulated engine: the same ports in each of its lives."""

    name: str
    role: Role
    command: list[str]
    env: dict[str, str]
    port: int
    log: Path
    relay: Relay
    process: subprocess.Popen[bytes] | None = None
    lives: int = 0
    corrupt: int = 0
    """Answers from wrong KV and reads of freed blocks, of lives that are over."""

    @property
    def key(self) -> str:
        """The engine as the router names it."""
        return f"{HOST}:{self.relay.port}"

    def start(self) -> None:
        """Begin a life."""
        self.lives += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, env=self.env, stdout=log, stderr=log)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End its life at once."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(30)
        self.relay.refuse()

    async def ready(self, session: aiohttp.ClientSession) -> None:
        """Wait until it answers, then let the router reach it."""
        if self.process is not None:
            await answers(self.port, session, self.process)
        await self.relay.listen()

    async def state(self, session: aiohttp.ClientSession) -> dict[str, Any] | None:
        """Return what it says of itself; None where it does not answer."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
            async with session.get(f"http://{HOST}:{self.port}/sim/state") as answer:
                found: dict[str, Any] = await answer.json()
                return found
        return None


@dataclass
class Site:
    """Engines, router and fleet file of one phase. `legs`: the deadline of each leg in seconds."""

    kind: ConnectorKind
    folder: Path
    flags: Sequence[str]
    legs: float
    engines: list[Engine] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)
    draining: set[str] = field(default_factory=set)
    router: subprocess.Popen[bytes] | None = None
    port: int = 0
    admin: int = 0

    def of(self, role: Role) -> list[Engine]:
        """Return the engines of one role."""
        return [engine for engine in self.engines if engine.role is role]

    async def start(self, session: aiohttp.ClientSession, *, each: int) -> None:
        """Start `each` engines of each role, then the router."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for role in Role:
            self.engines += [self._engine(role, number) for number in range(1, each + 1)]
        for engine in self.engines:
            engine.start()
        for engine in self.engines:
            await engine.ready(session)
        self.write_fleet()
        self.port, self.admin = free_port(), free_port()
        command = [str(Path(sys.executable).with_name("duplex-router")), "--fleet", str(self._fleet_file)]
        command += ["--host", HOST, "--port", str(self.port), "--admin-port", str(self.admin)]
        command += ["--prefill-seconds", str(self.legs), "--decode-seconds", str(self.legs)]
        command += ["--silence-seconds", str(self.legs), "--drain-seconds", "30"]
        self.router = self._start_router(command)
        await answers(self.port, session, self.router)

    def _start_router(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "router.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def _engine(self, role: Role, number: int) -> Engine:
        port, side = free_port(), free_port()
        transfer = TransferSettings(
            connector=self.kind,
            backend=Backend.UCX,
            buffer_device="cpu",
            role_is_both=True,
            lease_seconds=LEASE_SECONDS,
            bidirectional=True,
            ttl_seconds=TTL_SECONDS,
            threshold_tokens=1,
        )
        command = [sys.executable, "-m", "duplex_simulator", "serve", MODEL, "--host", HOST, "--port", str(port)]
        command += [*self.flags, "--enable-prompt-tokens-details"]
        if role is Role.PREFILL:
            command.append("--no-enable-prefix-caching")  # so that every reuse is a pull
        command += ["--kv-transfer-config", kv_transfer_argument(role, transfer)]
        env = {**os.environ, Env.SIDE_CHANNEL_HOST: HOST, Env.SIDE_CHANNEL_PORT: str(side)}
        name = f"{role.value}-{number}"
        return Engine(name, role, command, env, port, self.folder / f"{name}.log", Relay(port))

    @property
    def _fleet_file(self) -> Path:
        return self.folder / "fleet.json"

    def write_fleet(self) -> None:
        """Write the fleet file as engines are now: without those that are absent."""
        urls = {
            role.value: [f"http://{engine.key}" for engine in self.of(role) if engine.name not in self.absent]
            for role in Role
        }
        document = {
            "model": {"name": MODEL, "blockSize": 16, "connector": self.kind.value},
            "policy": {"ttlSeconds": TTL_SECONDS, "recomputeThresholdTokens": 1, "tenancy": "Header"},
            "revisions": [{"name": "r1", "engines": urls}],
            "draining": [engine.key for engine in self.engines if engine.name in self.draining],
            "canary": {"enabled": False},
        }
        written = self._fleet_file.with_suffix(".new")
        written.write_text(json.dumps(document))
        written.replace(self._fleet_file)

    def router_kilobytes(self) -> int:
        """Return the router's resident memory in kB."""
        if self.router is None:
            return 0
        for line in Path(f"/proc/{self.router.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        return 0

    async def stop_router(self) -> int | None:
        """End the router as Kubernetes does; return its exit status, None where it had to be killed."""
        if self.router is None:
            return 0
        self.router.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self.router.wait, 60)
        except subprocess.TimeoutExpired:
            self.router.kill()
            return None

    async def close(self) -> None:
        """End everything."""
        if self.router is not None and self.router.poll() is None:
            self.router.kill()
            self.router.wait(30)
        for engine in self.engines:
            engine.signal(signal.SIGCONT)
            engine.kill()
            await engine.relay.close()
