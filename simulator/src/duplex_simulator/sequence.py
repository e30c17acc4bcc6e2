"""One request's KV: its block tables, the cells it should find there, and whether what it reads is its own."""

from __future__ import annotations

import array
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from duplex_connector.proof import Group, GroupKind

from .blocks import NULL_BLOCK, BlockPool
from .chain import CELL_BYTES, extend, fold, mix, origin


@dataclass(frozen=True)
class Layout:
    """The KV-cache groups of a model, and the attention window in tokens of its window groups.

    `prefix_caching`: state-space models cannot have it.
    """

    groups: tuple[Group, ...]
    window: int = 0
    prefix_caching: bool = True

    @property
    def has_state(self) -> bool:
        """Return whether a group keeps one state instead of a block per span of tokens."""
        return any(group.kind is GroupKind.STATE for group in self.groups)

    def first_block_kept(self, group: Group, computed: int) -> int:
        """Return the index of the first block that tokens after `computed` can still attend to."""
        if group.kind is not GroupKind.WINDOW:
            return 0
        return max(0, computed - self.window + 1) // group.block_size

    def blocks_needed(self, group: Group, tokens: int) -> int:
        """Return the length of a table that covers `tokens` tokens."""
        return min(1, tokens) if group.kind is GroupKind.STATE else -(-tokens // group.block_size)


class SequenceKV:
    """Block tables of one request over a shared pool, with the true cells of its tokens beside them.

    `tables[g]` lists block ids of group g, NULL_BLOCK where the window has moved on. `computed` counts tokens whose KV
    the tables hold. `tainted`: some of it was not computed from this request's tokens; what is computed on top of it
    is not either.
    """

    def __init__(
        self, pool: BlockPool, layout: Layout, tokens: Sequence[int], *, adapter: str | None, salt: str | None
    ) -> None:
        self.pool, self.layout, self.salt, self.adapter = pool, layout, salt, adapter
        self.tokens = list(tokens)
        self.computed = 0
        self.tainted = False
        self._remembered = 0
        self.tables: list[list[int]] = [[] for _ in layout.groups]
        self._origin = origin(adapter)
        self._true: array.array[int] = array.array("Q")
        extend(self._true, self._origin, self.tokens)
        self._actual = self._origin

    def append(self, token: int) -> None:
        """Add a generated token; its KV comes with the next `compute`."""
        self.tokens.append(token)
        extend(self._true, self._origin, [token])

    def drop_last(self) -> None:
        """Forget the last token, of which nothing was computed yet."""
        self.tokens.pop()
        self._true.pop()

    def last_cell(self) -> int:
        """Return the cell of the last computed token as computed: what the next token is sampled from."""
        return self._actual

    # -- prefix cache ------------------------------------------------------------------------------------------------

    def _key(self, group: int, block: int) -> Hashable:
        end = (block + 1) * self.layout.groups[group].block_size
        return (group, end, self._true[end - 1], self.salt, self.adapter)

    def find_cached(self, limit: int) -> tuple[int, list[list[int]]]:
        """Return the longest prefix, at most `limit` tokens, that the pool's prefix cache holds, and its blocks.

        A window group needs only the blocks that the tokens after the prefix attend to.
        """
        if not self.layout.prefix_caching:
            return 0, [[] for _ in self.layout.groups]
        size = math.lcm(*(group.block_size for group in self.layout.groups))
        for index, group in enumerate(self.layout.groups):
            if group.kind is GroupKind.FULL:
                limit = self._run(index, limit // group.block_size) * group.block_size
        for tokens in range(limit // size * size, 0, -size):
            hits = [self._hits(index, tokens) for index in range(len(self.layout.groups))]
            if all(hit is not None for hit in hits):
                return tokens, [hit for hit in hits if hit is not None]
        return 0, [[] for _ in self.layout.groups]

    def _run(self, index: int, limit: int) -> int:
        return next((block for block in range(limit) if self.pool.cached(self._key(index, block)) is None), limit)

    def _hits(self, index: int, tokens: int) -> list[int] | None:
        group = self.layout.groups[index]
        first = self.layout.first_block_kept(group, tokens)
        found = [self.pool.cached(self._key(index, block)) for block in range(first, tokens // group.block_size)]
        blocks = [block for block in found if block is not None]
        return [NULL_BLOCK] * first + blocks if len(blocks) == len(found) else None

    def adopt(self, tokens: int, hits: Sequence[Sequence[int]]) -> None:
        """Start from a prefix-cache hit of `tokens` tokens."""
        self.tables = [list(hit) for hit in hits]
        for table in self.tables:
            self.pool.acquire(table)
        self.computed = tokens

    def remember(self) -> None:
        """Put the full computed blocks into the prefix cache, under the hashes of this request's tokens.

        That is where wrong KV poisons later requests: the cache trusts the tokens, not the content.
        """
        if not self.layout.prefix_caching:
            return
        for index, (group, table) in enumerate(zip(self.layout.groups, self.tables, strict=True)):
            for block in range(self._remembered // group.block_size, self.computed // group.block_size):
                self.pool.remember(self._key(index, block), table[block])
        self._remembered = self.computed

    # -- tables ------------------------------------------------------------------------------------------------------

    def blocks_missing(self, tokens: int, *, held: int = 0) -> int:
        """Return how many blocks it takes to cover `tokens` tokens, with `held` of them already in the tables."""
        total = 0
        for group, table in zip(self.layout.groups, self.tables, strict=True):
            first = max(len(table), self.layout.first_block_kept(group, held))
            total += max(0, self.layout.blocks_needed(group, tokens) - first)
        return total

    def reserve(self, tokens: int, *, held: int | None = None) -> None:
        """Grow the tables to cover `tokens` tokens.

        `held`: of these, KV comes from elsewhere; a window group then needs no blocks before the window of `held`.
        Raises NoFreeBlocksError and changes nothing where the pool is short.
        """
        start = self.computed if held is None else held
        fresh = self.pool.allocate(self.blocks_missing(tokens, held=start))
        for group, table in zip(self.layout.groups, self.tables, strict=True):
            needed = self.layout.blocks_needed(group, tokens)
            first = self.layout.first_block_kept(group, start)
            table.extend([NULL_BLOCK] * max(0, min(first, needed) - len(table)))
            while len(table) < needed:
                table.append(fresh.pop(0))

    def release(self) -> None:
        """Give every block back."""
        for table in self.tables:
            self.pool.release(table)
        self.tables = [[] for _ in self.layout.groups]
        self.computed = self._remembered = 0

    def hand_over(self) -> list[list[int]]:
        """Give the tables, and with them the references to their blocks, to the caller."""
        tables, self.tables = self.tables, [[] for _ in self.layout.groups]
        return tables

    def exported(self) -> list[list[int]]:
        """Return the block ids that a hand-off names: per group those that cover the computed tokens and are kept."""
        out = []
        for group, table in zip(self.layout.groups, self.tables, strict=True):
            ids = table[: self.layout.blocks_needed(group, self.computed)]
            out.append(ids[-group.window_blocks :] if group.window_blocks else ids)
        return out

    def unhashed(self) -> list[list[int]]:
        """Return per group the blocks that a pull writes to: those not in the prefix cache, clipped to the window."""
        out = []
        for group, table in zip(self.layout.groups, self.tables, strict=True):
            ids = [block for block in table if not self.pool.is_cached(block)]
            out.append(ids[-group.window_blocks :] if group.window_blocks else ids)
        return out

    # -- content -----------------------------------------------------------------------------------------------------

    def settle(self, computed: int) -> None:
        """Take `computed` tokens as held (from the cache or a pull) and find out whether they are this request's.

        Where a cell differs from the one that this request's tokens give, everything computed from now on differs.
        """
        self.computed = computed
        self.tainted = False
        self._actual = self._true[computed - 1] if computed else self._origin
        wrong = [self._foreign(index, computed) for index in range(len(self.layout.groups))]
        if any(wrong):
            self.tainted = True
            self._actual = fold(b"".join(wrong))

    def _foreign(self, index: int, computed: int) -> bytes:
        group, table = self.layout.groups[index], self.tables[index]
        if group.kind is GroupKind.STATE:
            if not computed:
                return b""
            state = self.pool.read(table[0])[: 2 * CELL_BYTES]
            return b"" if state == self._state(computed, self._true[computed - 1]) else state or b"empty"
        wrong = b""
        first = max(0, computed - self.layout.window + 1) if group.kind is GroupKind.WINDOW else 0
        for block in range(first // group.block_size, -(-computed // group.block_size)):
            start, end = max(first, block * group.block_size), min(computed, (block + 1) * group.block_size)
            offset = start - block * group.block_size
            held = self.pool.read(table[block])[offset * CELL_BYTES : (offset + end - start) * CELL_BYTES]
            if held != self._true[start:end].tobytes():
                wrong += held or b"empty"
        return wrong

    @staticmethod
    def _state(tokens: int, cell: int) -> bytes:
        return array.array("Q", [tokens, cell]).tobytes()

    def compute(self, upto: int) -> None:
        """Compute the KV of the tokens from `computed` to `upto` and write it; the tables must cover them."""
        cells: array.array[int] = array.array("Q")
        if self.tainted:
            cell = self._actual
            for token in self.tokens[self.computed : upto]:
                cell = mix(cell, token)
                cells.append(cell)
        else:
            cells = self._true[self.computed : upto]
        for group, table in zip(self.layout.groups, self.tables, strict=True):
            if group.kind is GroupKind.STATE:
                self.pool.write(table[0], 0, self._state(upto, cells[-1]))
            else:
                self._write_cells(group, table, cells)
        self._actual = cells[-1]
        self.computed = upto
        self._leave_window()

    def _write_cells(self, group: Group, table: list[int], cells: array.array[int]) -> None:
        done = 0
        while done < len(cells):
            block, offset = divmod(self.computed + done, group.block_size)
            count = min(group.block_size - offset, len(cells) - done)
            self.pool.write(table[block], offset * CELL_BYTES, cells[done : done + count].tobytes())
            done += count

    def _leave_window(self) -> None:
        for group, table in zip(self.layout.groups, self.tables, strict=True):
            for block in range(self.layout.first_block_kept(group, self.computed)):
                if table[block] != NULL_BLOCK:
                    self.pool.release([table[block]])
                    table[block] = NULL_BLOCK
