"""What is to be looked at when, in slots of a second: a tick costs what is due, not what there is."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Timetable(Generic[T]):
    """Items by the second in which each is due; every operation costs the same however many there are."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._next = int(clock())
        self._slots: dict[int, dict[T, None]] = {}
        self._slot_of: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._slot_of)

    def put(self, item: T, when: float) -> None:
        """Have an item due at a time, instead of when it was due before."""
        self.drop(item)
        slot = max(int(when), self._next)
        self._slot_of[item] = slot
        items = self._slots.get(slot)
        if items is None:
            items = self._slots[slot] = {}
        items[item] = None

    def drop(self, item: T) -> None:
        """Forget an item."""
        slot = self._slot_of.pop(item, None)
        if slot is not None:
            items = self._slots[slot]
            del items[item]
            if not items:
                del self._slots[slot]

    def due(self, now: float) -> list[T]:
        """Take out what is due, the earliest first."""
        found: list[T] = []
        for slot in range(self._next, int(now) + 1):
            items = self._slots.pop(slot, None)
            if items is not None:
                found += items
        self._next = int(now) + 1
        for item in found:
            del self._slot_of[item]
        return found
