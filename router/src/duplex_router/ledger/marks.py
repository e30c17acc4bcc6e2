"""Which entries have a mark: nearly always one, of a history that nobody else shares."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class Marks(Generic[T]):
    """Items by their marks. A mark that several have costs a dict of its own; all others cost a place in one."""

    __slots__ = ("_newest", "_shared")

    def __init__(self) -> None:
        self._newest: dict[bytes, T] = {}
        self._shared: dict[bytes, dict[T, None]] = {}
        """All that have a mark, the newest last, where there are several."""

    def __len__(self) -> int:
        return len(self._newest)

    def __contains__(self, mark: object) -> bool:
        return mark in self._newest

    def add(self, marks: Iterable[bytes], item: T) -> None:
        """Let an item be found by its marks."""
        newest = self._newest
        for mark in marks:
            other = newest.get(mark)
            if other is not None and other is not item:
                items = self._shared.get(mark)
                if items is None:
                    items = self._shared[mark] = {other: None}
                items[item] = None
            newest[mark] = item

    def remove(self, marks: Iterable[bytes], item: T) -> None:
        """Let an item be found no more; what is not there is passed over."""
        newest = self._newest
        for mark in marks:
            items = self._shared.get(mark) if self._shared else None
            if items is None:
                if newest.get(mark) is item:
                    del newest[mark]
                continue
            items.pop(item, None)
            newest[mark] = next(reversed(items))
            if len(items) == 1:
                del self._shared[mark]

    def known(self, marks: list[bytes]) -> int:
        """Return how many of a history's marks are here: who has a mark has all before it, so halving finds it."""
        low, high = 0, len(marks)
        if high and marks[high - 1] in self._newest:
            return high
        while low < high:
            middle = (low + high) // 2
            if marks[middle] in self._newest:
                low = middle + 1
            else:
                high = middle
        return low

    def count(self, mark: bytes) -> int:
        """Return how many items have a mark."""
        items = self._shared.get(mark) if self._shared else None
        return len(items) if items is not None else int(mark in self._newest)

    def newest(self, mark: bytes, most: int) -> list[T]:
        """Return items that have a mark, the newest first, so many at most."""
        items = self._shared.get(mark) if self._shared else None
        if items is not None:
            return list(islice(reversed(items), most))
        item = self._newest.get(mark)
        return [item] if item is not None else []
