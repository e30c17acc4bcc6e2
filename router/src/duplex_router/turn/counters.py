"""What a router counts. Plain numbers and fixed buckets: a turn pays for an addition, never for a lock or a lookup."""

from __future__ import annotations

from bisect import bisect_left
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


class Histogram:
    """Counts of durations by bucket."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


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
