"""A running digest over the bytes of a history, with marks on the way: equal beginnings have equal marks.

Digests are a hint of what is worth offering to an engine that proves the tokens itself, and a guard only within one
tenant's own conversations; they need not withstand attack.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

STRIDE_BYTES = 256
"""Distance of marks: about one step of an engine's proof (64 tokens) in English text, and just that in token ids."""

_GROWTH = 5
_END = b"\xff"
"""Closes a part. UTF-8 has no such byte, so no part can run into the next."""


def stride_at(offset: int) -> int:
    """Return the distance from a mark at `offset` bytes to the next: it grows to 1/32 of what lies before it.

    So a history of any length has some hundred marks, each of which costs a turn two microseconds. What lies between
    two of them is not lost: marks only choose the handle, and the engine's proof goes on to the last equal token.
    """
    return max(STRIDE_BYTES, offset >> _GROWTH & -STRIDE_BYTES)


class Chain:
    """`marks`: the digest of everything so far, after each part and at strides within it.

    `offset`: bytes of parts so far; `next_mark`: the offset of the next mark within a part.
    """

    __slots__ = ("marks", "next_mark", "offset", "state")

    def __init__(self, seed: bytes) -> None:
        self.state = xxhash.xxh3_128(seed)
        self.offset = 0
        self.next_mark = STRIDE_BYTES
        self.marks: list[bytes] = []

    def add(self, data: bytes) -> None:
        """Take more bytes of the present part."""
        end = self.offset + len(data)
        if end < self.next_mark:
            self.state.update(data)
            self.offset = end
            return
        view, start = memoryview(data), self.offset
        while self.next_mark <= end:
            self.state.update(view[self.offset - start : self.next_mark - start])
            self.marks.append(self.state.digest())
            self.offset = self.next_mark
            self.next_mark += stride_at(self.next_mark)
        self.state.update(view[self.offset - start :])
        self.offset = end

    def close(self) -> None:
        """End the present part, with a mark."""
        self.state.update(_END)
        self.marks.append(self.state.digest())

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
        other = Chain(b"")
        other.state, other.marks = self.state.copy(), self.marks.copy()
        other.offset, other.next_mark = self.offset, self.next_mark
        return other

    def digest(self) -> bytes:
        """Return the digest of everything so far."""
        return self.state.digest()
