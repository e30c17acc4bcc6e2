"""Faults, one at a time: an engine killed, frozen, cut off, taken out of the fleet, or drained, and then well again.

One at a time because that is what a turn promises to survive: it is done again once. So the next fault also waits for
the turns that met the last one. The store that routers share is
killed or frozen too, which no turn may notice.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp

from .engine import Engine
from .site import Site

WEIGHTS = {"kill": 75, "freeze": 10, "reset": 10, "drain": 5, "remove": 5}
STORE_WEIGHTS = {"store-kill": 6, "store-freeze": 4}
SETTLE_SECONDS = 1.0


@dataclass
class Window:
    """When an engine could not serve: answers of it that were under way may have broken off."""

    engine: str
    kind: str
    begin: float
    end: float | None = None


@dataclass
class Faults:
    """Does one fault after another until told to stop; `windows` says which engine was hit when."""

    site: Site
    session: aiohttp.ClientSession
    random: random.Random
    longest_freeze: float
    windows: list[Window] = field(default_factory=list)
    under_way: dict[str, asyncio.Event] = field(default_factory=dict)
    """Turns that clients wait for, each with what says that it is over."""
    counts: Counter[str] = field(default_factory=Counter)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set; every engine is well again then."""
        kinds: dict[str, Callable[[Engine], Awaitable[None]]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "reset": self._reset,
            "drain": self._drain,
            "remove": self._remove,
            "store-kill": self._kill_store,
            "store-freeze": self._freeze_store,
        }
        weights = WEIGHTS | (STORE_WEIGHTS if self.site.store is not None else {})
        while not stop.is_set():
            await asyncio.sleep(self.random.uniform(0.5, 2.0))
            kind = self.random.choices(list(weights), list(weights.values()))[0]
            engine = self.random.choice(self.site.engines)
            self.counts[kind] += 1
            await kinds[kind](engine)
            await asyncio.sleep(SETTLE_SECONDS)
            for over in list(self.under_way.values()):
                await over.wait()

    def _begin(self, engine: Engine, kind: str) -> Window:
        window = Window(engine.key, kind, time.monotonic())
        self.windows.append(window)
        return window

    async def _kill(self, engine: Engine) -> None:
        await self.note(engine)
        window = self._begin(engine, "kill")
        engine.kill()
        await asyncio.sleep(self.random.choice([0.0, 0.2, 1.0, 3.0]))
        engine.start()
        await engine.ready(self.session)
        window.end = time.monotonic()

    async def _freeze(self, engine: Engine) -> None:
        for each in self.site.engines:
            await self.note(each)
        window = self._begin(engine, "freeze")
        engine.signal(signal.SIGSTOP)
        await asyncio.sleep(self.random.uniform(0.2, self.longest_freeze))
        engine.signal(signal.SIGCONT)
        window.end = time.monotonic()
        await asyncio.sleep(SETTLE_SECONDS)
        # A read that a freeze held up past its lease cannot be prevented. Its reader must not use what it brings: an
        # answer from it would be marked.
        for each in self.site.engines:
            await self.note(each, late_explained=True)

    async def _reset(self, engine: Engine) -> None:
        window = self._begin(engine, "reset")
        engine.relay.reset()
        window.end = time.monotonic()

    async def _drain(self, engine: Engine) -> None:
        self.site.draining = {engine.name}
        self.site.write_fleet()
        await asyncio.sleep(self.random.uniform(1.0, 4.0))
        self.site.draining = set()
        self.site.write_fleet()

    async def _remove(self, engine: Engine) -> None:
        self.site.absent = {engine.name}
        self.site.write_fleet()
        await asyncio.sleep(self.random.uniform(1.0, 4.0))
        self.site.absent = set()
        self.site.write_fleet()

    async def _kill_store(self, _: Engine) -> None:
        if self.site.store is not None:
            self.site.store.kill()
            await asyncio.sleep(self.random.choice([0.2, 1.0, 4.0]))
            self.site.store.start()

    async def _freeze_store(self, _: Engine) -> None:
        if self.site.store is not None:
            self.site.store.signal(signal.SIGSTOP)
            await asyncio.sleep(self.random.uniform(0.2, 3.0))
            self.site.store.signal(signal.SIGCONT)

    async def note(self, engine: Engine, *, late_explained: bool = False) -> None:
        """Keep what an engine has counted so far in its life, before that may end."""
        state = await engine.state(self.session)
        if state is not None:
            engine.corrupt.take(state["corruptAnswers"])
            engine.late.take(state["freedReads"], explained=late_explained)

    def met(self, begin: float, end: float) -> list[str]:
        """Return in words the faults of a time, from its beginning on."""
        found = [each for each in self.windows if each.begin <= end and (each.end is None or each.end >= begin)]
        return [
            f"{each.kind} of {each.engine} from {each.begin - begin:.1f} to "
            + (f"{each.end - begin:.1f} s" if each.end is not None else "now")
            for each in found
        ]

    def explains(self, begin: float, end: float, keys: set[str]) -> Window | None:
        """Return the fault that hit one of these engines while an answer was under way."""
        for window in self.windows:
            if window.engine in keys and window.begin <= end and (window.end is None or window.end >= begin):
                return window
        return None
