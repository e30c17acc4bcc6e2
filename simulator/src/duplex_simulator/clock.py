"""The engine's clock: monotonic seconds of this process, which is also what vLLM publishes as an expiry time."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Time as the engine sees it; tests inject one that they move by hand."""

    def now(self) -> float:
        """Return monotonic seconds with an origin of this process's own, as vLLM's `time.perf_counter()`."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Return `time.perf_counter()`."""
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        """Sleep; zero still lets other tasks run."""
        await asyncio.sleep(max(0.0, seconds))
