"""A running digest over the bytes of a history, with marks on the way: equal beginnings have equal marks.

Digests are a hint of what is worth offering to an engine that proves the tokens itself, and a guard only within one
tenant's own conversations; they need not withstand attack.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from xxhash import xxh3_128_digest

STRIDE_BYTES: Final = 256
"""Distance of marks: about one step of an engine's proof (64 tokens) in English text, and just that in token ids."""

_GROWTH: Final = 5
_END: Final = b"\xff"
"""Closes a part. UTF-8 has no such byte, so no part can run into the next."""


def stride_at(offset: int) -> int:
    """Return the distance from a mark at `offset` bytes to the next: it grows to 1/32 of what lies before it.

    So a history of any length has some hundred marks, each of which costs a turn two microseconds. What lies between
    two of them is not lost: marks only choose the handle, and the engine's proof goes on to the last equal token.
    """
    return max(STRIDE_BYTES, offset >> _GROWTH & -STRIDE_BYTES)


class Chain:
    """`marks`: the digest of everything so far, after each part and at strides within it.

    Each mark is the digest of the one before and what came since, so that a chain is no more than its last mark, and
    goes its own way from there. `offset`: bytes of parts so far; `next_mark`: the offset of the next mark within a
    part; `last`: the last mark, or the seed; `rest`: what came of the present part since.
    """

    __slots__ = ("last", "marks", "next_mark", "offset", "rest")

    def __init__(self, seed: bytes) -> None:
        self.last = seed
        self.rest = b""
        self.offset = 0
        self.next_mark = STRIDE_BYTES
        self.marks: list[bytes] = []

    def _mark(self, data: bytes) -> None:
        self.last = mark = xxh3_128_digest(self.last + data)
        self.marks.append(mark)

    def add(self, data: bytes) -> None:
        """Take more bytes of the present part."""
        end = self.offset + len(data)
        start = self.offset
        while self.next_mark <= end:
            self._mark(self.rest + data[self.offset - start : self.next_mark - start])
            self.rest = b""
            self.offset = self.next_mark
            self.next_mark += stride_at(self.next_mark)
        self.rest += data[self.offset - start :] if self.offset > start else data
        self.offset = end

    def close(self) -> None:
        """End the present part, with a mark."""
        self._mark(self.rest + _END)
        self.rest = b""

    def add_parts(self, parts: Iterable[bytes]) -> list[int]:
        """Take whole parts, and return how many marks there are after each."""
        ends: list[int] = []
        for part in parts:
            self.add(part)
            self.close()
            ends.append(len(self.marks))
        return ends

    def copy(self) -> Chain:
        """Return a chain that goes its own way from here."""
        other = Chain(self.last)
        other.marks, other.rest = self.marks.copy(), self.rest
        other.offset, other.next_mark = self.offset, self.next_mark
        return other

    def digest(self) -> bytes:
        """Return the digest of everything so far."""
        return xxh3_128_digest(self.last + self.rest) if self.rest else self.last
