"""Health by pair: a prefill and a decode engine may be unable to reach each other while both are well.

After a cut, a pair can stay broken for good, in both directions, while both engines answer `/health` with 200 and work
with others (seen on vLLM 0.32 with UCX). So transfers that failed are counted by pair: a broken pair is avoided, tried
again now and then by one turn, and named in `/stats`, so that one of its sides can be restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from .engines import TRIAL_SECONDS, doubled

BROKEN_AFTER: Final = 2
"""Failures in a row, in one direction: one alone may be a hold that had just ended."""

FIRST_REST_SECONDS: Final = 10.0
LONGEST_REST_SECONDS: Final = 120.0


class Way(IntEnum):
    """Who reads: prefill pulls from decode, or decode reads prefill's hand-off."""

    PULL = 0
    HAND_OFF = 1


@dataclass(slots=True)
class Pair:
    """One pair with its failures in a row by way. `since`: when the first of them was."""

    prefill: str
    decode: str
    since: float
    failures: list[int] = field(default_factory=lambda: [0 for _ in Way])
    resting_until: float = 0.0

    @property
    def broken(self) -> bool:
        """Whether it failed too often to be used without need."""
        return max(self.failures) >= BROKEN_AFTER


class Pairs:
    """The pairs that failed and have not worked since; all others are well. Bounded by the engines there are."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pairs: dict[tuple[str, str], Pair] = {}

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def failed(self, prefill: str, decode: str, way: Way) -> None:
        """Count a transfer that failed."""
        now = self._clock()
        pair = self._pairs.setdefault((prefill, decode), Pair(prefill, decode, now))
        pair.failures[way] += 1
        beyond = pair.failures[way] - BROKEN_AFTER
        if beyond >= 0:
            pair.resting_until = now + doubled(FIRST_REST_SECONDS, beyond, LONGEST_REST_SECONDS)

    def worked(self, prefill: str, decode: str, way: Way) -> None:
        """Count a transfer that went well: it says nothing of the other way."""
        pair = self._pairs.get((prefill, decode))
        if pair is None:
            return
        pair.failures[way] = 0
        if not any(pair.failures):
            del self._pairs[prefill, decode]
        elif not pair.broken:
            pair.resting_until = 0.0

    def usable(self, prefill: str, decode: str) -> bool:
        """Tell whether a pair may be used: it is not broken, or has rested and may be tried."""
        pair = self._pairs.get((prefill, decode))
        return pair is None or not pair.broken or self._clock() >= pair.resting_until

    def try_again(self, prefill: str, decode: str) -> None:
        """Say that a turn uses a pair: if it is broken, this is its trial, and others wait for it."""
        pair = self._pairs.get((prefill, decode))
        if pair is not None and pair.broken:
            pair.resting_until = self._clock() + TRIAL_SECONDS

    def forget(self, engine: str) -> None:
        """Forget the pairs of an engine that is gone or has started anew."""
        for key in [key for key in self._pairs if engine in key]:
            del self._pairs[key]

    def broken(self) -> list[Pair]:
        """Return the broken pairs, longest broken first."""
        return sorted((pair for pair in self._pairs.values() if pair.broken), key=lambda pair: pair.since)
