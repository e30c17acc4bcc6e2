"""What reuse came to of late: the same counts as since the start, over a window, so that an end of reuse is seen."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from duplex_router.turn.counters import Counters

WINDOW_SECONDS = 900.0
STEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Reuse:
    """Counts of turns by what reuse came to."""

    eligible: int
    full: int
    partial: int
    rejected: Counter[str]


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    reuse: Reuse


class RecentReuse:
    """Keeps a sample of the counters a minute, as far back as the window; `begun` is the router's start."""

    def __init__(self, begun: float) -> None:
        self._samples = deque([_Sample(begun, Reuse(0, 0, 0, Counter()))])

    def sample(self, counters: Counters, now: float) -> None:
        """Note where the counters stand, once a step; the newest sample that is as old as the window stays."""
        if now - self._samples[-1].at < STEP_SECONDS:
            return
        self._samples.append(_Sample(now, _reuse(counters)))
        while len(self._samples) > 1 and now - self._samples[1].at >= WINDOW_SECONDS:
            self._samples.popleft()

    def since(self, counters: Counters, now: float) -> tuple[float, Reuse]:
        """Return how many seconds the window spans, and what was counted in it."""
        first, last = self._samples[0], _reuse(counters)
        before = first.reuse
        return now - first.at, Reuse(
            last.eligible - before.eligible,
            last.full - before.full,
            last.partial - before.partial,
            last.rejected - before.rejected,
        )


def _reuse(counters: Counters) -> Reuse:
    return Reuse(counters.eligible, counters.full, counters.partial, Counter(counters.rejected))
