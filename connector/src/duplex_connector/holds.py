"""The holds of one decode engine: whose blocks it keeps until when, and how each of them ended.

Pure bookkeeping beside vLLM's own: vLLM frees the blocks, this says which, counts releases apart from lapses, and
feeds the metrics. Deadlines are of the scheduler process's monotonic clock, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

RELEASED: Final = -math.inf
"""The deadline of a hold that its owner released: the worker frees it at once and counts no expiry."""


@dataclass
class _Hold:
    tokens: int
    deadline: float


@dataclass
class Counts:
    """What happened since it was last asked."""

    renewals: int = 0
    releases: int = 0
    lapses: int = 0


class Holds:
    """The open holds by request id."""

    def __init__(self) -> None:
        self._open: dict[str, _Hold] = {}
        self._counts = Counts()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def tokens(self) -> int:
        """Tokens whose KV the open holds keep."""
        return sum(hold.tokens for hold in self._open.values())

    def open(self, request_id: str, *, tokens: int, deadline: float) -> None:
        """Note that a finished turn's blocks are kept until `deadline`."""
        self._open[request_id] = _Hold(tokens, deadline)

    def apply(self, renew: Mapping[str, float], *, now: float) -> dict[str, float]:
        """Renew (seconds from now) or release (0) holds; return the new deadlines by request id.

        Unknown holds are left out: they have lapsed, were consumed, or belong to an earlier boot. A released hold
        cannot be renewed: its blocks may be another's already.
        """
        deadlines = {}
        for request_id, seconds in renew.items():
            hold = self._open.get(request_id)
            if hold is None or hold.deadline == RELEASED:
                continue
            hold.deadline = now + seconds if seconds > 0 else RELEASED
            self._counts.renewals += seconds > 0
            deadlines[request_id] = hold.deadline
        return deadlines

    def freed(self, request_ids: Iterable[str], *, now: float) -> None:
        """Note that vLLM freed these requests' blocks: released, lapsed, or consumed by a reader."""
        for request_id in request_ids:
            hold = self._open.pop(request_id, None)
            if hold is None:
                continue
            if hold.deadline == RELEASED:
                self._counts.releases += 1
            elif now >= hold.deadline:
                self._counts.lapses += 1

    def take_counts(self) -> Counts:
        """Return what happened since the last call."""
        counts, self._counts = self._counts, Counts()
        return counts
