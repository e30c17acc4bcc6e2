"""A clock that tests move, and that moves itself to the next sleeper when nothing else happens."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_IDLE_ROUNDS = 60
"""Loop rounds without progress after which the clock moves on; work on loopback sockets takes fewer."""


class VirtualClock:
    """Sleepers wake in the order of their times; no real time passes."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    def move(self, seconds: float) -> None:
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), wake))
        await wake

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return what `work` returns, moving to the next sleeper's time whenever the loop is idle."""
        task = asyncio.ensure_future(work)
        while not task.done():
            for _ in range(_IDLE_ROUNDS):
                await asyncio.sleep(0)
            if not task.done():
                self._wake_next()
        return await task

    def _wake_next(self) -> None:
        while self._sleepers:
            at, _, wake = heapq.heappop(self._sleepers)
            if not wake.done():
                self._now = max(self._now, at)
                wake.set_result(None)
                return
