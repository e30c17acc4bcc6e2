"""Which entries have a mark: nearly always one, of a history that nobody else shares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class _Stem(Generic[T]):
    """What an item's marks lead to: it is handed on as a whole to what goes on from that item."""

    __slots__ = ("item",)

    def __init__(self, item: T) -> None:
        self.item = item


class Marks(Generic[T]):
    """Items by their marks, of which each has all before it too, as those of a chain.

    A mark that several have costs a dict of its own; all others cost a place in one.
    """

    __slots__ = ("_newest", "_shared", "_stems")

    def __init__(self) -> None:
        self._newest: Final[dict[bytes, _Stem[T]]] = {}
        self._shared: Final[dict[bytes, dict[_Stem[T], None]]] = {}
        """All that have a mark, the newest last, where there are several."""
        self._stems: Final[dict[T, _Stem[T]]] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def __contains__(self, mark: object) -> bool:
        return mark in self._newest

    def add(self, marks: Sequence[bytes], item: T) -> None:
        """Let an item be found by its marks."""
        stem = self._stems.get(item)
        if stem is None:
            stem = self._stems[item] = _Stem(item)
        self._put(marks, 0, stem)

    def _put(self, marks: Sequence[bytes], start: int, stem: _Stem[T]) -> None:
        newest = self._newest
        for position in range(start, len(marks)):
            mark = marks[position]
            other = newest.get(mark)
            if other is not None and other is not stem:
                stems = self._shared.get(mark)
                if stems is None:
                    stems = self._shared[mark] = {other: None}
                stems[stem] = None
            newest[mark] = stem

    def remove(self, marks: Sequence[bytes], item: T) -> None:
        """Let an item be found no more; what is not there is passed over."""
        stem = self._stems.get(item)
        if stem is not None:
            del self._stems[item]
            self._drop(marks, 0, stem)

    def _drop(self, marks: Sequence[bytes], start: int, stem: _Stem[T]) -> None:
        newest = self._newest
        for position in range(start, len(marks)):
            mark = marks[position]
            stems = self._shared.get(mark) if self._shared else None
            if stems is None:
                if newest.get(mark) is stem:
                    del newest[mark]
                continue
            stems.pop(stem, None)
            newest[mark] = next(reversed(stems))
            if len(stems) == 1:
                del self._shared[mark]

    def replace(self, former: T, former_marks: Sequence[bytes], item: T, marks: Sequence[bytes], same: int) -> None:
        """Let an item be found instead of a former one, of whose marks it has the first `same`.

        That costs what is new of it, and the marks that others share: however long a history is, it goes on by little.
        """
        stem = self._stems.get(former)
        if stem is None:
            self.add(marks, item)
            return
        del self._stems[former]
        stem.item = item
        self._stems[item] = stem
        for position in range(same):
            stems = self._shared.get(marks[position])
            if stems is None:
                break  # who shares a mark shares all before it
            stems.pop(stem, None)
            stems[stem] = None
            self._newest[marks[position]] = stem
        self._drop(former_marks, same, stem)
        self._put(marks, same, stem)

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
        stems = self._shared.get(mark) if self._shared else None
        return len(stems) if stems is not None else int(mark in self._newest)

    def newest(self, mark: bytes, most: int) -> list[T]:
        """Return items that have a mark, the newest first, so many at most."""
        stems = self._shared.get(mark) if self._shared else None
        if stems is not None:
            return [stem.item for stem in islice(reversed(stems), most)]
        stem = self._newest.get(mark)
        return [stem.item] if stem is not None else []
