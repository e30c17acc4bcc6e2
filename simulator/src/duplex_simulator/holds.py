"""Blocks that finished requests keep for a peer: hand-offs under a lease, finished turns under a deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from duplex_connector.contract import KEEP_PREFIX

HEARTBEAT_PREFIX: Final = "HB:"


@dataclass
class Hold:
    """The blocks of one finished request.

    `turn`: a decode engine's finished turn; else a prefill's hand-off. `tracked`: whether the worker was told of the
    request; a stock one is not where decode computed a turn alone, and then nothing ever frees its blocks.
    """

    request_id: str
    tables: list[list[int]]
    tokens: int
    deadline: float
    turn: bool
    tracked: bool = True


@dataclass
class HoldCounts:
    """What became of holds; `expired` and `late` are vLLM's own counters, the rest the guarded connector's."""

    expired: int = 0
    late: int = 0
    consumed: int = 0
    kept: int = 0
    renewals: int = 0
    releases: int = 0
    lapses: int = 0


@dataclass
class Holds:
    """Every hold of one engine, and what may end it.

    `free` takes the block tables of a hold that ends. `lease`: seconds of a hand-off's lease; a heartbeat moves its
    deadline to at least two thirds of that from now (vLLM 0.22 and later). `guarded`: notifications of pulls that must
    not consume are recognised, and deadlines may be renewed.
    """

    free: Callable[[list[list[int]]], None]
    lease: float
    guarded: bool
    counts: HoldCounts = field(default_factory=HoldCounts)
    _held: dict[str, Hold] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._held)

    def all(self) -> list[Hold]:
        """Return every hold, oldest first."""
        return list(self._held.values())

    def turns(self) -> list[Hold]:
        """Return the holds of finished turns."""
        return [hold for hold in self._held.values() if hold.turn]

    def get(self, request_id: str) -> Hold | None:
        """Return the hold of a request, None where it ended or never was."""
        return self._held.get(request_id)

    def add(self, hold: Hold) -> None:
        """Keep the blocks of a finished request until they are read, released, or lapse."""
        self._held[hold.request_id] = hold

    def notified(self, text: str, now: float) -> None:
        """Take one notification of a peer: heartbeats, or that a read is complete (`<request id>:<consumers>`)."""
        if text.startswith(HEARTBEAT_PREFIX):
            for request_id in text.removeprefix(HEARTBEAT_PREFIX).split(","):
                hold = self._held.get(request_id)
                if hold is not None and hold.tracked:
                    hold.deadline = max(hold.deadline, now + self.lease * 2 // 3)
            return
        request_id = text.rpartition(":")[0]
        if self.guarded and request_id.startswith(KEEP_PREFIX):
            self.counts.kept += 1
            return
        hold = self._held.get(request_id)
        if hold is None or not hold.tracked:
            self.counts.late += 1
            return
        self.counts.consumed += 1
        self._end(request_id)

    def renew(self, request_id: str, seconds: float, now: float) -> None:
        """Move a deadline to `seconds` from now; 0 ends the hold at once. Unknown ids are harmless."""
        hold = self._held.get(request_id)
        if hold is None:
            return
        if seconds <= 0:
            self.counts.releases += 1
            self._end(request_id)
            return
        self.counts.renewals += 1
        hold.deadline = now + seconds

    def reap(self, now: float) -> None:
        """End every hold whose deadline has passed."""
        for hold in [hold for hold in self._held.values() if hold.tracked and hold.deadline <= now]:
            self.counts.expired += 1
            if hold.turn:
                self.counts.lapses += 1
            self._end(hold.request_id)

    def _end(self, request_id: str) -> None:
        self.free(self._held.pop(request_id).tables)
