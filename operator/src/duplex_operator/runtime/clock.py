"""Time as a value that is passed in, so that tests decide what time it is."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Timer(Protocol):
    """A call that was put off and may be called off."""

    def cancel(self) -> None:
        """Call it off; without effect if it has happened."""
        ...


class Clock(Protocol):
    """All the time that the operator knows."""

    def now(self) -> float:
        """Return seconds that only grow, also while the process is stopped or the machine sleeps."""
        ...

    def wall(self) -> datetime:
        """Return the time of day in UTC, for people to read; never for a decision."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` in the event loop after ``delay`` seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> float:
        """See ``Clock.now``. CLOCK_MONOTONIC would stand still while the machine sleeps, and a lease would not end."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> datetime:
        """See ``Clock.wall``."""
        return datetime.now(UTC)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """See ``Clock.call_later``."""
        return asyncio.get_running_loop().call_later(delay, callback)

    async def sleep(self, seconds: float) -> None:
        """See ``Clock.sleep``."""
        await asyncio.sleep(seconds)
