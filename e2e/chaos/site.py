"""What is under test: engines behind relays, routers, the fleet file between them, and the store that routers share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from duplex_connector.contract import ConnectorKind, Role
from duplex_lab.progress import Progress
from duplex_lab.store_server import StoreProcess, ensure_store_program

from .engine import TTL_SECONDS, Engine, answers, make_engine
from .loopback import HOST, free_port
from .oracle import MODEL
from .router import Router

DRAIN_SECONDS = 30


@dataclass
class Site:
    """Engines, routers, store and fleet file of one phase.

    `legs`: the routers' deadline of each leg in seconds. `policy`: what differs in the fleet file's.
    """

    kind: ConnectorKind
    folder: Path
    flags: Sequence[str]
    legs: float
    policy: Mapping[str, Any] = field(default_factory=dict)
    engines: list[Engine] = field(default_factory=list)
    routers: list[Router] = field(default_factory=list)
    store: StoreProcess | None = None
    absent: set[str] = field(default_factory=set)
    draining: set[str] = field(default_factory=set)

    def of(self, role: Role) -> list[Engine]:
        """Return the engines of one role."""
        return [engine for engine in self.engines if engine.role is role]

    async def start(self, session: aiohttp.ClientSession, *, each: int, routers: int) -> None:
        """Start `each` engines of each role, then the routers; where they are several, with a store between them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for role in Role:
            numbers = range(1, each + 1)
            self.engines += [make_engine(self.kind, role, number, self.folder, self.flags) for number in numbers]
        for engine in self.engines:
            engine.start()
        for engine in self.engines:
            await engine.ready(session)
        self.write_fleet()
        options = ["--fleet", str(self._fleet_file), "--drain-seconds", str(DRAIN_SECONDS)]
        options += ["--prefill-seconds", str(self.legs), "--decode-seconds", str(self.legs)]
        options += ["--silence-seconds", str(self.legs)]
        if routers > 1:
            self.store = StoreProcess(ensure_store_program(Progress()), self.folder, HOST, free_port())
            self.store.start()
            options += ["--store", self.store.url]
        self.routers = [Router(f"router-{number}", self.folder / f"router-{number}.log") for number in range(routers)]
        for router in self.routers:
            router.start(options)
        for router in self.routers:
            await answers(router.port, session, router.alive)

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
            "policy": {"ttlSeconds": TTL_SECONDS, "recomputeThresholdTokens": 1, "tenancy": "Header", **self.policy},
            "revisions": [{"name": "r1", "engines": urls}],
            "draining": [engine.key for engine in self.engines if engine.name in self.draining],
            "canary": {"enabled": False},
        }
        written = self._fleet_file.with_suffix(".new")
        written.write_text(json.dumps(document))
        written.replace(self._fleet_file)

    async def stop_routers(self) -> list[int | None]:
        """End all routers as Kubernetes does; return their exit statuses, None where one had to be killed."""
        return await asyncio.gather(*(router.stop() for router in self.routers))

    async def close(self) -> None:
        """End everything."""
        for router in self.routers:
            router.kill()
        if self.store is not None:
            self.store.kill()
        for engine in self.engines:
            engine.kill()
            await engine.relay.close()
