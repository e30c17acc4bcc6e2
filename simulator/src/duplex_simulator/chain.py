"""What a KV cell is here: a digest of every token up to its position, and of the adapter that computed it.

Real keys and values at position i are a function of tokens 0..i and the weights. A cell is the cheapest thing with that
property: cell(i) = mix(cell(i - 1), token(i)). So KV that was computed from anything else than a request's own tokens
is recognised by comparing cells, and an answer computed from it can be marked.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Sequence
from typing import Final

CELL_BYTES: Final = 8
_MASK: Final = (1 << 64) - 1


def origin(adapter: str | None) -> int:
    """Return the cell before the first token: the weights, which here are the adapter's name."""
    return int.from_bytes(hashlib.blake2b((adapter or "").encode(), digest_size=CELL_BYTES).digest(), "little")


def mix(cell: int, token: int) -> int:
    """Return the next cell. A 64-bit mix, not a cryptographic one: nobody attacks a simulator."""
    cell = ((cell ^ (token + 1)) * 0x9E3779B97F4A7C15) & _MASK
    cell ^= cell >> 29
    cell = (cell * 0xBF58476D1CE4E5B9) & _MASK
    return cell ^ (cell >> 32)


def extend(cells: array.array[int], start: int, tokens: Sequence[int]) -> None:
    """Append the cells of `tokens` to `cells`, going on from `start` where `cells` is empty."""
    cell = cells[-1] if cells else start
    for token in tokens:
        cell = mix(cell, token)
        cells.append(cell)


def fold(data: bytes) -> int:
    """Return one cell that depends on all of `data`: what attention makes of KV that is not the request's own."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=CELL_BYTES).digest(), "little")
