"""One router: all its parts put together, started, drained and stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from .admin.access_log import AccessLog
from .admin.app import AdminApp
from .admin.aside import Aside
from .admin.canary import Canary
from .admin.models import ModelReader
from .admin.probe import TemplateProbe
from .admin.scrape import Scraper
from .admin.state import AdminState
from .fleet.engines import Engine
from .fleet.fleet import Fleet
from .http.app import App
from .http.credentials import Credentials
from .http.settings import CredentialSettings, ServerSettings
from .http.upstream import Pool
from .ledger.fates import Fate
from .ledger.ledger import Ledger
from .options import STDOUT, SeenSettings
from .store.address import StoreSettings
from .store.shared import StoreLedger
from .turn.admission import QueueSettings
from .turn.core import Core, LegSettings
from .turn.counters import Counters
from .turn.keeper import Keeper

log = logging.getLogger(__name__)

POOL_TICK_SECONDS = 0.25
TICK_SECONDS = 1.0
RELEASE_SECONDS = 5.0
UNTIL_STEP_SECONDS = 0.02
RESTART_SECONDS = 1.0
CLOSE_SECONDS = 1.0
STORE_SLACK_SECONDS = 10.0
"""What a pull may begin later than its look-up in the store."""


class Source(Protocol):
    """Feeds the fleet."""

    async def run(self) -> None:
        """Feed it until cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How a router listens. Port 0: any free one."""

    host: str = "0.0.0.0"  # noqa: S104 - a server in a pod; give --host to narrow it
    port: int = 8000
    admin_port: int = 9100
    pod_name: str = ""
    drain_seconds: float = 100.0
    legs: LegSettings = field(default_factory=LegSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    store: StoreSettings | None = None
    """Where routers share their ledgers; None: this router has its own only."""
    credentials: CredentialSettings = field(default_factory=CredentialSettings)
    seen: SeenSettings = field(default_factory=SeenSettings)


class Service:
    """A router. `start`, then `stop`: which lets turns end and releases every hold. Raises CredentialError."""

    def __init__(self, settings: ServiceSettings, make_source: Callable[[Fleet], Source]) -> None:
        self._settings = settings
        clock = time.monotonic
        self.ledger = Ledger(clock)
        self.fleet = Fleet(clock, on_gone=self._engine_gone, held_tokens=self.ledger.held_tokens)
        self.credentials = Credentials(settings.credentials)
        self.pool = Pool(clock, self.credentials)
        self.counters = Counters()
        keeper = Keeper(ledger=self.ledger, fleet=self.fleet, transport=self.pool, clock=clock, counters=self.counters)
        self.core = Core(
            fleet=self.fleet,
            ledger=self.ledger,
            keeper=keeper,
            transport=self.pool,
            clock=clock,
            later=lambda seconds, run: asyncio.get_running_loop().call_later(seconds, run),
            counters=self.counters,
            settings=settings.legs,
            queue=settings.queue,
        )
        self.store = self._make_store(clock)
        self.app = App(self.core, settings.server, self.credentials)
        self.state = AdminState(self.core, settings.pod_name, clock(), self.app.serves)
        self._admin = AdminApp(self.state)
        self._seen = self._watch_turns()
        self._source = make_source(self.fleet)
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.port = self.admin_port = 0

    def _watch_turns(self) -> list[Aside]:
        """Return what writes and sends finished turns, already told of each."""
        seen, core, state = self._settings.seen, self.core, self.state

        def ahead() -> float:
            return state.wall_clock() - core.clock()

        made: list[Aside] = []
        if seen.access_log is not None:
            path = None if seen.access_log == STDOUT else seen.access_log
            made.append(AccessLog(path, seen.access_log_sample, ahead))
        if seen.traces:
            from .admin.tracing import SpanSender  # noqa: PLC0415 - needs an extra that few install

            core.trace_sample = seen.trace_sample
            made.append(SpanSender(seen.traces, self._settings.pod_name, ahead))
        core.observers += [each.observe for each in made]
        return made

    def _make_store(self, clock: Callable[[], float]) -> StoreLedger | None:
        if self._settings.store is None:
            return None
        legs = self._settings.legs
        store = StoreLedger(
            self._settings.store,
            self.ledger,
            clock,
            guarded=self.core.keeper.guarded,
            retired=self.core.keeper.flush,
            pull_seconds=legs.prefill_seconds + legs.pull_grace_seconds + STORE_SLACK_SECONDS,
            name=self._settings.pod_name,
        )
        self.core.shared = self.core.keeper.shared = store
        return store

    def _engine_gone(self, engine: Engine) -> None:
        fate = Fate.DRAINING if engine.draining else Fate.ENGINE_GONE
        self.counters.holds_ended[fate] += self.ledger.forget_engine(engine.key, fate)

    async def start(self) -> None:
        """Listen on both ports and start what runs beside."""
        admin = await self._admin.listen(self._settings.host, self._settings.admin_port)
        api = await self.app.listen(self._settings.host, self._settings.port)
        self._servers = [api, admin]
        self.port, self.admin_port = (server.sockets[0].getsockname()[1] for server in self._servers)
        beside: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._source.run,
            self._tick_pool,
            self._tick,
            Scraper(self.state).run,
            TemplateProbe(self.state).run,
            ModelReader(self.state).run,
            Canary(self.state, time.time).run,
        ]
        beside += [self.store.run] if self.store is not None else []
        beside += [each.run for each in self._seen]
        self._tasks = [asyncio.create_task(_endure(each)) for each in beside]
        log.info("router listens on port %d, admin on %d", self.port, self.admin_port)

    async def _tick_pool(self) -> None:
        while True:
            self.pool.tick()
            await asyncio.sleep(POOL_TICK_SECONDS)

    async def _tick(self) -> None:
        while True:
            self.core.keeper.tick()
            self.core.admission.tick()
            self.app.tick()
            self._admin.tick()
            self.state.recent.sample(self.counters, self.core.clock())
            self.credentials.refresh()
            await asyncio.sleep(TICK_SECONDS)

    async def stop(self) -> None:
        """Take no new requests, let turns end within the drain time, release every hold, and close."""
        self.state.draining = True
        self._servers[0].close()
        self.app.drain()
        await self._until(lambda: self.counters.in_flight == 0, self._settings.drain_seconds)
        for connection in list(self.app.connections):
            connection.drain()
        await self._let_go()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pool.close()
        for server in self._servers:
            server.close()
        for connection in [*self.app.connections, *self._admin.connections]:
            connection.close()
        await self._until(lambda: not self.app.connections and not self._admin.connections, CLOSE_SECONDS)
        await asyncio.sleep(UNTIL_STEP_SECONDS)  # the engines' connections close in the loop's next round

    async def _let_go(self) -> None:
        """Release every hold; those that the store has are left to the routers that stay or come."""
        # A hold is not released under a leg that was cut off a moment ago: its grace is waited for.
        patience = RELEASE_SECONDS + self._settings.legs.pull_grace_seconds
        if self.store is not None:
            await self._until(lambda: not any(entry.pulls for entry in self.ledger), patience)
            await self.store.leave()
        for entry in list(self.ledger):
            if not entry.published:
                self.ledger.retire(entry, Fate.DISABLED)
        self.core.keeper.flush()
        keeper = self.core.keeper
        await self._until(lambda: all(e.published for e in self.ledger) and keeper.outstanding == 0, patience)
        left, released = len(self.ledger), self.counters.holds_ended["released"]
        log.info("router stops; holds released since it began: %d, left to others: %d", released, left)

    @staticmethod
    async def _until(done: Callable[[], bool], seconds: float) -> None:
        for _ in range(round(seconds / UNTIL_STEP_SECONDS)):
            if done():
                return
            await asyncio.sleep(UNTIL_STEP_SECONDS)


async def _endure(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Keep running what never ends by itself: an error of ours must neither pass in silence nor end the router."""
    while True:
        try:
            await run()
        except Exception:
            log.exception("a part of the router ended; it starts again")
        await asyncio.sleep(RESTART_SECONDS)
