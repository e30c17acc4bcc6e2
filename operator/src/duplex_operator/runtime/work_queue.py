"""Keys that need work: each once however often it is asked for, never in two workers, failures later and later."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from duplex_operator.runtime.clock import Clock, Timer

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 300.0

Key = TypeVar("Key", bound=Hashable)


@dataclass
class QueueCounts:
    """What has happened since the start."""

    added: int = 0
    started: int = 0
    retried: int = 0


@dataclass(frozen=True, slots=True)
class _Delayed:
    due: float
    timer: Timer


class WorkQueue(Generic[Key]):
    """A queue of keys with the semantics of client-go's.

    ``add`` of a waiting key changes nothing; ``add`` of a key that a worker holds makes it wait again once the worker
    says ``done``. Of several ``add_after`` the earliest counts. Every ``get`` is followed by exactly one ``done``.

    Keys that are ``urgent`` when they are asked for are had before all that are not: somebody waits for those, while a
    leader that has just begun has everything in its queue (controller-runtime's priority queue does so too).
    """

    def __init__(
        self,
        clock: Clock,
        *,
        urgent: Callable[[Key], bool] = lambda _: False,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.counts = QueueCounts()
        self._clock = clock
        self._urgent = urgent
        self._jitter = jitter
        self._first: deque[Key] = deque()
        self._waiting: deque[Key] = deque()
        self._asked: dict[Key, float] = {}  # since when; waiting keys, and held keys that were asked for again
        self._held: dict[Key, float] = {}  # since when
        self._delayed: dict[Key, _Delayed] = {}
        self._failures: dict[Key, int] = {}
        self._arrival = asyncio.Event()

    def add(self, key: Key) -> None:
        """Ask for work on ``key`` now."""
        self._cancel_delayed(key)
        if key in self._asked:
            self._advance(key)
            return
        self.counts.added += 1
        self._asked[key] = self._clock.now()
        if key not in self._held:
            self._line_up(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Ask for work on ``key`` once ``seconds`` have passed, unless it is asked for sooner."""
        due = self._clock.now() + seconds
        delayed = self._delayed.get(key)
        if key in self._asked:
            self._advance(key)
            return
        if delayed is not None and delayed.due <= due:
            return
        self._cancel_delayed(key)
        self._delayed[key] = _Delayed(due, self._clock.call_later(seconds, lambda: self.add(key)))

    def retry(self, key: Key) -> float:
        """Ask for work on ``key`` after its next backoff, and return it: 1 s doubling to 5 min, less up to a fifth."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.counts.retried += 1
        backoff: float = min(FIRST_BACKOFF_SECONDS * 2 ** min(failures, 32), LONGEST_BACKOFF_SECONDS)
        backoff *= 1 - 0.2 * self._jitter()
        self.add_after(key, backoff)
        return backoff

    def reset(self, key: Key) -> None:
        """Forget the failures of ``key``: the next backoff is the first again."""
        self._failures.pop(key, None)

    def forget(self, key: Key) -> None:
        """Forget ``key`` altogether: failures and what was put off."""
        self.reset(key)
        self._cancel_delayed(key)

    async def get(self) -> Key:
        """Wait for a key and hold it until ``done``."""
        while not self.depth:
            self._arrival.clear()
            await self._arrival.wait()
        key = (self._first or self._waiting).popleft()
        del self._asked[key]
        self._held[key] = self._clock.now()
        self.counts.started += 1
        return key

    def done(self, key: Key) -> None:
        """Give ``key`` back. If it was asked for meanwhile, it waits again."""
        del self._held[key]
        if key in self._asked:
            self._line_up(key)

    @property
    def depth(self) -> int:
        """How many keys wait for a worker."""
        return len(self._first) + len(self._waiting)

    @property
    def delayed(self) -> int:
        """How many keys wait for their time."""
        return len(self._delayed)

    def longest_wait(self) -> float:
        """Return for how many seconds the key that waits longest for a worker has waited."""
        now = self._clock.now()
        return max((now - self._asked[key] for key in chain(self._first, self._waiting)), default=0.0)

    def longest_held(self) -> float:
        """Return for how many seconds a worker has been busy with one key, at most."""
        now = self._clock.now()
        return max((now - since for since in self._held.values()), default=0.0)

    def _line_up(self, key: Key) -> None:
        (self._first if self._urgent(key) else self._waiting).append(key)
        self._arrival.set()

    def _advance(self, key: Key) -> None:
        if self._urgent(key) and key in self._waiting:
            self._waiting.remove(key)
            self._first.append(key)

    def _cancel_delayed(self, key: Key) -> None:
        delayed = self._delayed.pop(key, None)
        if delayed is not None:
            delayed.timer.cancel()
