"""The block pool: reference counts, the free list, the prefix cache, and what every block holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

NULL_BLOCK: Final = 0
"""vLLM keeps block 0 as the padding of tables whose blocks have left the attention window."""


class NoFreeBlocksError(Exception):
    """The pool is empty: the caller preempts somebody or waits."""


class BlockPool:
    """`count` blocks shared by all KV-cache groups, as vLLM's `BlockPool` (0.33, v1/core/block_pool.py).

    A block whose last reference goes keeps its content and its place in the prefix cache until it is allocated anew;
    the free list is least recently freed first.
    """

    def __init__(self, count: int) -> None:
        if count < 2:  # noqa: PLR2004 - the null block and one to use
            raise ValueError("a pool needs at least two blocks: one is the null block")
        self.count = count
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(1, count))
        self._references = [0] * count
        self._key_of: dict[int, Hashable] = {}
        self._block_of: dict[Hashable, int] = {}
        self._content: dict[int, bytearray] = {}

    @property
    def free(self) -> int:
        """Return how many blocks nobody refers to."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Return how many blocks somebody refers to."""
        return self.count - 1 - self.free

    @property
    def usage(self) -> float:
        """Return the share of blocks in use, 0..1: `vllm:kv_cache_usage_perc`."""
        return self.used / (self.count - 1)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks; their old content stays readable until it is written over, as on a device.

        Raises NoFreeBlocksError, and takes none, where fewer are free.
        """
        if count > len(self._free):
            raise NoFreeBlocksError
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._references[block] = 1
            key = self._key_of.pop(block, None)
            if key is not None:
                del self._block_of[key]
        return taken

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of `blocks` (a prefix-cache hit)."""
        for block in blocks:
            if block != NULL_BLOCK:
                self._free.pop(block, None)
                self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each of `blocks`; the last of them is the first to be reused, as in vLLM."""
        for block in reversed(blocks):
            if block == NULL_BLOCK:
                continue
            if self._references[block] <= 0:
                raise ValueError(f"block {block} is released more often than it was taken")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def remember(self, key: Hashable, block: int) -> None:
        """Put a full block into the prefix cache under `key`, unless the cache has that key or block already."""
        if block != NULL_BLOCK and key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def cached(self, key: Hashable) -> int | None:
        """Return the block that the prefix cache has under `key`."""
        return self._block_of.get(key)

    def is_cached(self, block: int) -> bool:
        """Return whether `block` stands in the prefix cache."""
        return block in self._key_of

    def write(self, block: int, offset: int, data: bytes) -> None:
        """Write `data` at byte `offset` of `block`. The null block takes writes and keeps nothing."""
        if block == NULL_BLOCK:
            return
        content = self._content.setdefault(block, bytearray())
        if len(content) < offset + len(data):
            content.extend(bytes(offset + len(data) - len(content)))
        content[offset : offset + len(data)] = data

    def read(self, block: int) -> bytes:
        """Return what `block` holds; raises IndexError for an id that the pool does not have."""
        if not 0 <= block < self.count:
            raise IndexError(f"block {block} is beyond the pool of {self.count}")
        return bytes(self._content.get(block, b""))
