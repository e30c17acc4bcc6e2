"""One simulated engine under test: the same address in each of its lives."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from duplex_connector.config import TransferSettings, kv_transfer_argument
from duplex_connector.contract import Backend, ConnectorKind, Env, Role

from .loopback import HOST, free_port
from .oracle import MODEL
from .process import SimulatorProcess
from .relay import Relay

START_SECONDS = 600.0
TTL_SECONDS = 60
LEASE_SECONDS = 30


async def answers(port: int, session: aiohttp.ClientSession, alive: Callable[[], bool]) -> None:
    """Wait until a server of ours is healthy. Raises RuntimeError where it does not get there."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and alive():
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(f"http://{HOST}:{port}/health") as answer:
                if answer.status == 200:  # noqa: PLR2004 - OK
                    return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"the server on port {port} did not start; see the logs")


@dataclass
class Tally:
    """A count of an engine's over all its lives. `seen`: what its present life had counted when last looked at."""

    total: int = 0
    seen: int = 0

    def take(self, count: int, *, explained: bool = False) -> None:
        """Add what is new in a life's count; what is explained is seen, no more."""
        self.total += 0 if explained else count - self.seen
        self.seen = count


@dataclass(eq=False)
class Engine:
    """One engine behind a relay, which can cut its connections."""

    name: str
    role: Role
    arguments: list[str]
    env: dict[str, str]
    port: int
    log: Path
    relay: Relay
    process: SimulatorProcess | None = None
    corrupt: Tally = field(default_factory=Tally)
    """Answers from wrong KV."""
    late: Tally = field(default_factory=Tally)
    """Reads of blocks that were freed already."""

    @property
    def key(self) -> str:
        """The engine as the router names it."""
        return f"{HOST}:{self.relay.port}"

    def start(self) -> None:
        """Begin a life."""
        self.corrupt.seen = self.late.seen = 0
        self.process = SimulatorProcess(self.arguments, self.log, self.env)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self.process is not None:
            self.process.signal(number)

    def kill(self) -> None:
        """End its life at once."""
        if self.process is not None:
            self.signal(signal.SIGCONT)
            self.process.kill()
        self.relay.refuse()

    async def ready(self, session: aiohttp.ClientSession) -> None:
        """Wait until it answers, then let the router reach it."""
        if self.process is not None:
            await answers(self.port, session, self.process.alive)
        await self.relay.listen()

    async def state(self, session: aiohttp.ClientSession) -> dict[str, Any] | None:
        """Return what it says of itself; None where it does not answer."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
            async with session.get(f"http://{HOST}:{self.port}/sim/state") as answer:
                found: dict[str, Any] = await answer.json()
                return found
        return None


def make_engine(kind: ConnectorKind, role: Role, number: int, folder: Path, flags: Sequence[str]) -> Engine:
    """Return an engine that does not run yet. `flags`: of the simulator, beside those of its role."""
    port, side = free_port(), free_port()
    transfer = TransferSettings(
        connector=kind,
        backend=Backend.UCX,
        buffer_device="cpu",
        role_is_both=True,
        lease_seconds=LEASE_SECONDS,
        bidirectional=True,
        ttl_seconds=TTL_SECONDS,
        threshold_tokens=1,
    )
    arguments = ["serve", MODEL, "--host", HOST, "--port", str(port), *flags, "--enable-prompt-tokens-details"]
    if role is Role.PREFILL:
        arguments.append("--no-enable-prefix-caching")  # so that every reuse is a pull
    arguments += ["--kv-transfer-config", kv_transfer_argument(role, transfer)]
    env = {Env.SIDE_CHANNEL_HOST: HOST, Env.SIDE_CHANNEL_PORT: str(side)}
    name = f"{role.value}-{number}"
    return Engine(name, role, arguments, env, port, folder / f"{name}.log", Relay(port))
