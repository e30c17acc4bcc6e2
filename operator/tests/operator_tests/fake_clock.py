"""Time that moves only when a test says so."""

import asyncio
import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """A ``Clock``. ``advance`` runs everything that falls due, in order, and lets tasks run in between."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._order = count()
        self._timers: list[tuple[float, int, FakeTimer]] = []

    def now(self) -> float:
        return self._now

    def wall(self) -> datetime:
        return START + timedelta(seconds=self._now)

    def call_later(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (self._now + delay, next(self._order), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        timer = self.call_later(seconds, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()

    def jump(self, seconds: float) -> None:
        """Let time pass without anything running: a process that was stopped and wakes."""
        self._now += seconds

    async def advance(self, seconds: float) -> None:
        await settle()
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, due)
            if timer.callback is not None:
                timer.callback()
                await settle()
        self._now = end
        await settle()


async def settle() -> None:
    """Let every task run until it waits for something outside."""
    for _ in range(50):
        await asyncio.sleep(0)
