"""What one decode engine holds, by tenant, and which of it goes first when that is more than its budget.

Worth changes with time, so each tenant's holds stand in a heap that is put right at moments which grow rarer with a
hold's age: an operation costs O(log holds), and no worth in it is older than its owner said that it lasts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T")
Worth = Callable[[T], tuple[float, float]]
"""Returns what a hold is worth for each token that it takes, and for how many seconds that lasts."""


SPARE_PLACES: Final = 64


class _Ranking(Generic[T]):
    """One tenant's holds on one engine, the least worth first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._due: list[tuple[float, int]] = []
        """Places by worth and by when that is to be found anew; some are no longer any hold's."""
        self._places: dict[T, int] = {}
        self._holds: dict[int, T] = {}
        self.tokens = 0

    def place(self, hold: T, number: int, worth: tuple[float, float], now: float) -> None:
        """Give a hold its place, anew where it has one; `number` is higher than any before."""
        former = self._places.get(hold)
        if former is not None:
            del self._holds[former]
        self._places[hold] = number
        self._holds[number] = hold
        heappush(self._heap, (worth[0], number))
        heappush(self._due, (now + worth[1], number))
        most = 2 * len(self._holds) + SPARE_PLACES
        if len(self._heap) > most or len(self._due) > most:
            self._forget_old_places()

    def _forget_old_places(self) -> None:
        """Drop what would only be passed over."""
        holds = self._holds
        self._heap = [place for place in self._heap if place[1] in holds]
        self._due = [place for place in self._due if place[1] in holds]
        heapify(self._heap)
        heapify(self._due)

    def remove(self, hold: T) -> None:
        """Take a hold out, if it has a place; its places in the heaps are passed over later."""
        place = self._places.get(hold)
        if place is not None:
            del self._places[hold]
            del self._holds[place]

    def overdue(self, now: float) -> Iterator[T]:
        """Yield, once each, the holds whose worth has to be found anew."""
        while self._due and self._due[0][0] <= now:
            _, number = heappop(self._due)
            hold = self._holds.get(number)
            if hold is not None:
                yield hold

    def least(self) -> tuple[float, T] | None:
        """Return the hold of least worth, and that."""
        while self._heap:
            worth, number = self._heap[0]
            hold = self._holds.get(number)
            if hold is not None:
                return worth, hold
            heappop(self._heap)
        return None


class EngineHolds(Generic[T]):
    """The holds of one engine, in the order in which they came. `tokens`: what they take together.

    A hold gets its place once somebody asks what goes first: most are replaced before anybody does. `near`: from how
    many tokens on that is to be expected, so that `prepare` gives places ahead of it.
    """

    def __init__(self, worth: Worth[T]) -> None:
        self._worth = worth
        self._numbers = itertools.count()
        self._tenants: dict[bytes, _Ranking[T]] = {}
        self._all: dict[T, tuple[bytes, int]] = {}
        self._unplaced: dict[T, None] = {}
        self.tokens = 0
        self.near = math.inf

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[T]:
        return iter(self._all)

    def __contains__(self, hold: object) -> bool:
        return hold in self._all

    def add(self, hold: T, tenant: bytes, tokens: int) -> None:
        """Take a new hold."""
        self._all[hold] = (tenant, tokens)
        self._unplaced[hold] = None
        self.tokens += tokens
        ranking = self._tenants.get(tenant)
        if ranking is None:
            ranking = self._tenants[tenant] = _Ranking()
        ranking.tokens += tokens

    def remove(self, hold: T) -> None:
        """Take a hold out."""
        tenant, tokens = self._all[hold]
        del self._all[hold]
        if hold in self._unplaced:
            del self._unplaced[hold]
        self.tokens -= tokens
        ranking = self._tenants[tenant]
        ranking.tokens -= tokens
        ranking.remove(hold)
        if not ranking.tokens:
            del self._tenants[tenant]

    def changed(self, hold: T) -> None:
        """Say that something was learnt of a hold: its worth is to be found anew."""
        if hold in self._all:
            self._unplaced[hold] = None

    def prepare(self, now: float) -> None:
        """Give new holds their places where that will be needed soon, so that no turn waits for many at once."""
        if self.tokens >= self.near:
            self._place(now)

    def _place(self, now: float) -> None:
        unplaced, self._unplaced = self._unplaced, {}
        for hold in unplaced:
            self._tenants[self._all[hold][0]].place(hold, next(self._numbers), self._worth(hold), now)

    def first_to_go(self, budget: int, now: float, *, spared: Callable[[T], bool]) -> T | None:
        """Return the hold of least worth among the tenants that hold more than an equal share of `budget` tokens.

        Others are left alone, so that one noisy client cannot fill the budget, unless all that those hold is `spared`.
        None where all of everyone's is.
        """
        self._place(now)
        share = budget / max(len(self._tenants), 1)
        over = [ranking for ranking in self._tenants.values() if ranking.tokens > share]
        within = [ranking for ranking in self._tenants.values() if ranking.tokens <= share]
        for rankings in (over, within):
            found = [least for ranking in rankings if (least := self._least(ranking, now, spared)) is not None]
            if found:
                return min(found, key=lambda least: least[0])[1]
        return None

    def _least(self, ranking: _Ranking[T], now: float, spared: Callable[[T], bool]) -> tuple[float, T] | None:
        for hold in ranking.overdue(now):
            ranking.place(hold, next(self._numbers), self._worth(hold), now)
        passed_over: list[T] = []
        found = ranking.least()
        while found is not None and spared(found[1]):
            passed_over.append(found[1])
            ranking.remove(found[1])
            found = ranking.least()
        for hold in passed_over:
            ranking.place(hold, next(self._numbers), self._worth(hold), now)
        return found
