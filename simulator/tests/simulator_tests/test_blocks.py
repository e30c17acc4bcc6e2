"""The pool: references, reuse order, the prefix cache, content."""

from __future__ import annotations

import pytest

from duplex_simulator.blocks import NULL_BLOCK, BlockPool, NoFreeBlocksError


def test_usage_counts_referenced_blocks() -> None:
    pool = BlockPool(11)
    blocks = pool.allocate(4)
    assert (pool.used, pool.free, pool.usage) == (4, 6, 0.4)
    pool.acquire(blocks)
    pool.release(blocks)
    assert pool.used == 4
    pool.release(blocks)
    assert pool.used == 0


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(5)
    assert NULL_BLOCK not in pool.allocate(4)
    with pytest.raises(NoFreeBlocksError):
        pool.allocate(1)


def test_a_failed_allocation_takes_nothing() -> None:
    pool = BlockPool(5)
    pool.allocate(3)
    with pytest.raises(NoFreeBlocksError):
        pool.allocate(2)
    assert pool.free == 1


def test_a_releases_last_block_is_reused_first() -> None:
    pool = BlockPool(4)
    first, second, third = pool.allocate(3)
    pool.release([first, second, third])
    assert pool.allocate(3) == [third, second, first]


def test_a_block_released_too_often_is_refused() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(ValueError, match="more often"):
        pool.release(blocks)


def test_freed_blocks_stay_cached_until_they_are_reused() -> None:
    pool = BlockPool(3)
    one, two = pool.allocate(2)
    pool.remember("key", one)
    pool.release([one, two])
    assert pool.cached("key") == one
    pool.acquire([one])
    assert pool.allocate(1) == [two]
    pool.release([one])
    assert pool.allocate(1) == [one]
    assert pool.cached("key") is None


def test_the_first_block_under_a_key_stays() -> None:
    pool = BlockPool(3)
    one, two = pool.allocate(2)
    pool.remember("key", one)
    pool.remember("key", two)
    assert pool.cached("key") == one
    assert not pool.is_cached(two)


def test_content_outlives_release_and_is_written_in_place() -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.write(block, 4, b"abcd")
    pool.release([block])
    assert pool.read(block) == bytes(4) + b"abcd"
    pool.write(block, 0, b"xy")
    assert pool.read(block) == b"xy" + bytes(2) + b"abcd"


def test_the_null_block_keeps_nothing() -> None:
    pool = BlockPool(3)
    pool.write(NULL_BLOCK, 0, b"abcd")
    assert pool.read(NULL_BLOCK) == b""


def test_an_id_beyond_the_pool_is_refused() -> None:
    with pytest.raises(IndexError, match="beyond the pool"):
        BlockPool(3).read(3)
