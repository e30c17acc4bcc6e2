"""One request's KV: hits, windows, states, and how wrong content shows."""

from __future__ import annotations

from duplex_connector.proof import Group, GroupKind
from duplex_simulator.blocks import NULL_BLOCK, BlockPool
from duplex_simulator.sequence import Layout, SequenceKV

FULL = Layout((Group(GroupKind.FULL, 4),))
WINDOW = Layout((Group(GroupKind.WINDOW, 4, 3), Group(GroupKind.FULL, 4)), window=6)
STATE = Layout((Group(GroupKind.STATE, 4), Group(GroupKind.FULL, 4)), prefix_caching=False)


def _computed(pool: BlockPool, tokens: list[int], layout: Layout = FULL, adapter: str | None = None) -> SequenceKV:
    kv = SequenceKV(pool, layout, tokens, adapter=adapter, salt=None)
    kv.reserve(len(tokens))
    kv.settle(0)
    kv.compute(len(tokens))
    kv.remember()
    return kv


def _copied(pool: BlockPool, source: SequenceKV, tokens: list[int], held: int, layout: Layout = FULL) -> SequenceKV:
    """Return KV of `tokens` whose first `held` were read from another request's blocks, as a pull does."""
    kv = SequenceKV(pool, layout, tokens, adapter=None, salt=None)
    kv.reserve(held, held=held)
    for local, remote in zip(kv.unhashed(), source.exported(), strict=True):
        for ours, theirs in zip(local, remote, strict=True):
            pool.write(ours, 0, pool.read(theirs))
    kv.settle(held)
    return kv


def test_the_cell_is_a_function_of_the_tokens_alone() -> None:
    whole = _computed(BlockPool(20), list(range(10)))
    stepwise = SequenceKV(BlockPool(20), FULL, list(range(10)), adapter=None, salt=None)
    stepwise.reserve(10)
    stepwise.settle(0)
    for upto in (3, 4, 9, 10):
        stepwise.compute(upto)
    assert whole.last_cell() == stepwise.last_cell()
    assert whole.last_cell() != _computed(BlockPool(20), [*range(9), 99]).last_cell()
    assert whole.last_cell() != _computed(BlockPool(20), list(range(10)), adapter="a").last_cell()


def test_a_copy_of_the_same_prefix_is_clean_also_in_a_partial_block() -> None:
    pool = BlockPool(30)
    source = _computed(pool, list(range(10)))
    kv = _copied(pool, source, [*range(10), 50, 51], 10)
    assert not kv.tainted
    kv.reserve(12)
    kv.compute(12)
    assert kv.last_cell() == _computed(BlockPool(20), [*range(10), 50, 51]).last_cell()


def test_one_different_token_taints_all_that_follows() -> None:
    pool = BlockPool(30)
    source = _computed(pool, [*range(9), 77])
    kv = _copied(pool, source, [*range(10), 50, 51], 10)
    assert kv.tainted
    kv.reserve(12)
    kv.compute(12)
    assert kv.last_cell() != _computed(BlockPool(20), [*range(10), 50, 51]).last_cell()


def test_another_adapters_kv_taints() -> None:
    pool = BlockPool(30)
    assert _copied(pool, _computed(pool, list(range(8)), adapter="a"), list(range(10)), 8).tainted


def test_the_prefix_cache_finds_full_blocks_of_the_same_salt_and_adapter() -> None:
    pool = BlockPool(30)
    _computed(pool, list(range(10)))
    same = SequenceKV(pool, FULL, list(range(10)), adapter=None, salt=None)
    assert same.find_cached(9)[0] == 8
    assert same.find_cached(7)[0] == 4
    assert SequenceKV(pool, FULL, list(range(10)), adapter=None, salt="s").find_cached(9)[0] == 0
    assert SequenceKV(pool, FULL, list(range(10)), adapter="a", salt=None).find_cached(9)[0] == 0


def test_wrong_content_in_the_cache_poisons_who_hits_it() -> None:
    pool = BlockPool(30)
    wrong = _copied(pool, _computed(pool, [9] * 8), list(range(12)), 8)
    wrong.remember()
    later = SequenceKV(pool, FULL, list(range(12)), adapter=None, salt=None)
    tokens, hits = later.find_cached(11)
    later.adopt(tokens, hits)
    later.settle(tokens)
    assert (tokens, later.tainted) == (8, True)


def test_a_window_group_keeps_only_its_tail() -> None:
    pool = BlockPool(60)
    kv = _computed(pool, list(range(20)), WINDOW)
    window, full = kv.tables
    assert window[:3] == [NULL_BLOCK] * 3
    assert NULL_BLOCK not in full
    # Blocks 3 and 4 cover the six tokens before the twentieth; the export is clipped to three.
    assert kv.exported() == [window[-3:], full]
    assert pool.used == 2 + 5


def test_a_whole_pull_of_a_window_model_is_clean_and_a_trimmed_one_is_not() -> None:
    pool = BlockPool(60)
    source = _computed(pool, list(range(20)), WINDOW)
    assert not _copied(pool, source, [*range(20), 50], 20, WINDOW).tainted
    kv = SequenceKV(pool, WINDOW, [*range(12), 50, 51], adapter=None, salt=None)
    kv.reserve(12, held=12)
    for local, remote in zip(kv.unhashed(), source.exported(), strict=True):
        for ours, theirs in zip(local, remote[: len(local)], strict=True):
            pool.write(ours, 0, pool.read(theirs))
    kv.settle(12)
    assert kv.tainted


def test_a_state_cannot_be_rewound() -> None:
    pool = BlockPool(60)
    source = _computed(pool, list(range(8)), STATE)
    longer = _copied(pool, source, [*range(8), 50], 8, STATE)
    assert not longer.tainted
    longer.settle(7)
    assert longer.tainted


def test_release_returns_every_block() -> None:
    pool = BlockPool(60)
    _computed(pool, list(range(20)), WINDOW).release()
    assert pool.used == 0
