"""What is done with finished turns beside the event loop: taken on it, worked off in a thread now and then."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from duplex_router.turn.record import TurnRecord


class Aside(ABC):
    """`wall_ahead`: Unix time less the turns' clock. `seconds`: between two rounds.

    `most`: turns that wait; beyond it the oldest are dropped and counted in `dropped`.
    """

    def __init__(self, wall_ahead: Callable[[], float], *, seconds: float, most: int) -> None:
        self._wall_ahead = wall_ahead
        self._seconds = seconds
        self._waiting: deque[TurnRecord] = deque(maxlen=most)
        self.dropped = 0

    @abstractmethod
    def observe(self, record: TurnRecord) -> None:
        """Take a finished turn, if it is of use."""

    @abstractmethod
    def flush(self) -> None:
        """Work off what waits; called in a thread."""

    def _keep(self, record: TurnRecord) -> None:
        self.dropped += len(self._waiting) == self._waiting.maxlen
        self._waiting.append(record)

    async def run(self) -> None:
        """Work until cancelled, and then once more."""
        try:
            while True:
                await asyncio.sleep(self._seconds)
                await asyncio.to_thread(self.flush)
        finally:
            await asyncio.shield(asyncio.to_thread(self.flush))
