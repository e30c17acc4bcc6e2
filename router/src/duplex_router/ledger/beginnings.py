"""Long histories that were read, by their bytes: the next turn begins with the same ones, so only the rest is read.

A client sends its whole conversation each turn. What of it is equal byte by byte to what was read before has the same
marks: hashing finds that out at a tenth of what splitting and hashing its parts anew would cost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import xxhash

from .chain import Chain

LONG_BYTES: Final = 8 * 1024
"""From which length on it is worth it."""

MAX_PLACES: Final = 256
MAX_AT_A_PLACE: Final = 4
_COMMA: Final = ord(",")


class Beginning:
    """The first `length` bytes of a JSON array, to the end of one of its items, and what they were read to.

    `chain` and `ends`: with all their parts, and where in its marks each ends.
    """

    __slots__ = ("chain", "digest", "ends", "length")

    def __init__(self, length: int, digest: bytes, chain: Chain, ends: list[int]) -> None:
        self.length = length
        self.digest = digest
        self.chain = chain
        self.ends = ends


class Beginnings:
    """The latest beginnings, whoever sent them: what bytes are read to depends on them alone.

    Each stands at a place: the digest of its own first 8, 16, 32 … kB, whichever is the longest. So conversations that
    begin alike are in one another's way only where that is more than half of them.
    """

    def __init__(self, limit: int = MAX_PLACES) -> None:
        self._limit = limit
        self._places: OrderedDict[bytes, list[Beginning]] = OrderedDict()

    def read(
        self, array: memoryview, before: bytes, chain: Chain, form: Callable[[bytes], list[bytes]]
    ) -> tuple[Chain, list[int]]:
        """Return a chain that goes on from `chain` with an array's parts, and where in its marks each of them ends.

        `before` names what `chain` holds and how parts are formed; `form` returns the parts of an array.
        """
        states = _states(array, before)
        found = self._find(array, states)
        ends: list[int] = []
        if found is None:
            rest = bytes(array)
        else:
            chain, ends = found.chain.copy(), found.ends.copy()
            rest = b"[" + bytes(array[found.length + 1 :])  # without the comma after it, or the end
        if len(rest) > 1:
            ends += chain.add_parts(form(rest))
        length = len(array) - 1  # without the array's end
        if found is None or found.length != length:
            position, state = states[-1]
            place = state.digest()
            state.update(array[position:length])
            self._keep(place, Beginning(length, state.digest(), chain, ends))
        return chain, ends

    def _find(self, array: memoryview, states: list[tuple[int, xxhash.xxh3_128]]) -> Beginning | None:
        """Return a beginning of an array that is known, of those that stand furthest on the newest."""
        length = len(array) - 1
        for position, state in reversed(states):
            for each in reversed(self._places.get(state.digest(), ())):
                if each.length > length or (each.length < length and array[each.length] != _COMMA):
                    continue
                whole = state.copy()
                whole.update(array[position : each.length])
                if whole.digest() == each.digest:
                    return each
        return None

    def _keep(self, place: bytes, new: Beginning) -> None:
        """Keep a beginning; where there are too many, those go that were made first."""
        kept = [each for each in self._places.get(place, ()) if each.digest != new.digest]
        self._places[place] = [*kept[1 - MAX_AT_A_PLACE :], new]
        self._places.move_to_end(place)
        if len(self._places) > self._limit:
            self._places.popitem(last=False)


def _states(array: memoryview, before: bytes) -> list[tuple[int, xxhash.xxh3_128]]:
    """Return the digest's states at all places within an array, the shortest first; there is one at least."""
    state = xxhash.xxh3_128(before)
    states: list[tuple[int, xxhash.xxh3_128]] = []
    start, position = 0, LONG_BYTES
    while position < len(array):
        state.update(array[start:position])
        states.append((position, state.copy()))
        start, position = position, 2 * position
    return states
