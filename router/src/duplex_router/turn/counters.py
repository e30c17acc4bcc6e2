"""What a router counts. Plain numbers and fixed buckets: a turn pays for an addition, never for a lock or a lookup."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

BUCKETS: Final[Sequence[float]] = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
)
"""Upper bounds in seconds."""

MAX_FRESH: Final = 1024


class Histogram:
    """Counts of durations by bucket. A turn only says how long it took; it is counted with others, or where asked."""

    __slots__ = ("_counts", "_fresh", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._total = 0.0
        self._fresh: list[float] = []

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._fresh.append(seconds)
        if len(self._fresh) >= MAX_FRESH:
            self._fold()

    def _fold(self) -> None:
        fresh, self._fresh = sorted(self._fresh), []
        self._total += sum(fresh)
        below = 0
        for position, bound in enumerate(BUCKETS):
            until = bisect_right(fresh, bound, below)
            self._counts[position] += until - below
            below = until
        self._counts[-1] += len(fresh) - below

    @property
    def counts(self) -> list[int]:
        """How many there were in each bucket, and beyond the last."""
        self._fold()
        return self._counts

    @property
    def total(self) -> float:
        """All seconds together."""
        self._fold()
        return self._total


@dataclass(slots=True)
class RevisionCount:
    """What one revision served."""

    served_tokens: int = 0
    turns: int = 0


@dataclass(slots=True)
class Counters:
    """All counts of one router since it started."""

    turns: int = 0
    in_flight: int = 0
    eligible: int = 0
    full: int = 0
    partial: int = 0
    missed: int = 0
    pulled_tokens: int = 0
    computed_tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)
    leg_failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    clients_gone: Counter[str] = field(default_factory=Counter)
    queue: Counter[str] = field(default_factory=Counter)
    holds_ended: Counter[str] = field(default_factory=Counter)
    unheld: Counter[str] = field(default_factory=Counter)
    """Turns that ended well and left no hold though they should have."""
    lease_messages: Counter[str] = field(default_factory=Counter)
    revisions: dict[str, RevisionCount] = field(default_factory=dict)
    first_byte: dict[str, Histogram] = field(default_factory=dict)
    prefill_leg: Histogram = field(default_factory=Histogram)
    decode_leg: Histogram = field(default_factory=Histogram)

    def revision(self, name: str) -> RevisionCount:
        """Return a revision's counts."""
        found = self.revisions.get(name)
        if found is None:
            found = self.revisions[name] = RevisionCount()
        return found

    def took_first_byte(self, outcome: str, seconds: float) -> None:
        """Count the time to a client's first byte by what reuse came to."""
        histogram = self.first_byte.get(outcome)
        if histogram is None:
            histogram = self.first_byte[outcome] = Histogram()
        histogram.add(seconds)
