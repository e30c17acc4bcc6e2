"""What a reader may pull on the strength of a holder's digests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_connector.contract import Duplex, Params
from duplex_connector.proof import (
    LONG_CONTEXT,
    LONG_STEP,
    SHORT_STEP,
    Decision,
    Group,
    GroupKind,
    Outcome,
    Reason,
    cut_blocks,
    decide,
    proved_tokens,
    publish,
    seed,
)

FULL = Group(GroupKind.FULL, 32)
WINDOW = Group(GroupKind.WINDOW, 32, 5)
STATE = Group(GroupKind.STATE, 544)
NO_SEED = seed(adapter=None, cache_salt=None)
POOL = 1000


def handle(tokens: list[int], groups: list[Group], *, seed_bytes: bytes = NO_SEED) -> dict[str, Any]:
    """Return a handle as a guarded decode engine writes it, with blocks numbered from 1."""
    ids = [list(range(1, 1 + group.blocks_for(len(tokens)))) for group in groups]
    return {
        Params.NUM_TOKENS: len(tokens),
        Params.BLOCK_IDS: ids,
        Params.DUPLEX: publish(tokens, seed_bytes=seed_bytes, groups=groups, total_blocks=POOL),
    }


def judge(params: dict[str, Any], prompt: list[int] | None, groups: list[Group] | None = None) -> Decision:
    return decide(params, prompt, seed_bytes=NO_SEED, groups=groups or [FULL])


HELD = list(range(1000, 1739))


def test_a_continuation_is_pulled_whole() -> None:
    decision = judge(handle(HELD, [FULL]), [*HELD, 7, 8, 9])
    assert (decision.outcome, decision.proved, decision.tokens) == (Outcome.FULL, 739, 739)
    assert decision.block_ids == [list(range(1, 25))]


def test_a_diverging_prompt_gets_the_proved_blocks_only() -> None:
    prompt = [*HELD[:700], *([5] * 100)]
    decision = judge(handle(HELD, [FULL]), prompt)
    assert (decision.outcome, decision.reason) == (Outcome.PARTIAL, Reason.DIVERGED)
    assert decision.proved == decision.tokens == 640
    assert decision.block_ids == [list(range(1, 21))]


def test_a_shorter_prompt_gets_no_more_than_it_has() -> None:
    decision = judge(handle(HELD, [FULL]), HELD[:650])
    assert decision.tokens == 640


@pytest.mark.parametrize("place", [0, 63])
def test_one_wrong_token_in_the_first_mark_proves_nothing(place: int) -> None:
    prompt = list(HELD)
    prompt[place] = 1
    decision = judge(handle(HELD, [FULL]), prompt)
    assert (decision.outcome, decision.tokens, decision.block_ids) == (Outcome.NONE, 0, [])


def test_another_adapter_or_salt_proves_nothing() -> None:
    for other in (
        seed(adapter=("lora", "/a"), cache_salt=None),
        seed(adapter=("lora", "/b"), cache_salt=None),
        seed(adapter=None, cache_salt="tenant"),
    ):
        assert judge(handle(HELD, [FULL], seed_bytes=other), HELD).proved == 0
    own = seed(adapter=("lora", "/a"), cache_salt="tenant")
    same = decide(handle(HELD, [FULL], seed_bytes=own), HELD, seed_bytes=own, groups=[FULL])
    assert same.outcome is Outcome.FULL


def test_seeds_tell_apart_what_a_join_would_confuse() -> None:
    assert seed(adapter=("a", "b,c"), cache_salt=None) != seed(adapter=("a,b", "c"), cache_salt=None)
    assert seed(adapter=None, cache_salt="null") != seed(adapter=None, cache_salt=None)


def test_a_window_model_pulls_all_or_nothing() -> None:
    groups = [WINDOW, FULL]
    whole = judge(handle(HELD, groups), [*HELD, 1], groups)
    assert [len(ids) for ids in whole.block_ids] == [5, 24]
    part = judge(handle(HELD, groups), HELD[:700], groups)
    assert (part.outcome, part.reason, part.tokens) == (Outcome.NONE, Reason.ALL_OR_NOTHING, 0)


def test_a_state_model_refuses_the_prompt_it_holds_exactly() -> None:
    groups = [STATE, FULL]
    assert judge(handle(HELD, groups), [*HELD, 1], groups).outcome is Outcome.FULL
    exact = judge(handle(HELD, groups), HELD, groups)
    assert (exact.outcome, exact.reason) == (Outcome.NONE, Reason.STATE_FULL_HIT)


def test_a_prompt_that_is_more_than_token_ids_is_computed() -> None:
    assert judge(handle(HELD, [FULL]), None).reason is Reason.UNSUPPORTED_INPUT


def test_a_handle_without_proof_is_not_pulled() -> None:
    bare = handle(HELD, [FULL])
    del bare[Params.DUPLEX]
    assert judge(bare, HELD).reason is Reason.NO_PROOF
    assert judge({**bare, Params.DUPLEX: {Duplex.THRESHOLD: 64}}, HELD).reason is Reason.NO_PROOF


@pytest.mark.parametrize(
    "other",
    [
        [Group(GroupKind.FULL, 64)],
        [Group(GroupKind.WINDOW, 32, 5)],
        [FULL, FULL],
    ],
)
def test_other_groups_or_block_sizes_are_refused(other: list[Group]) -> None:
    assert judge(handle(HELD, other), HELD).reason is Reason.GROUPS_DIFFER


MALFORMED: dict[str, dict[str, Any]] = {
    "ids cut": {Params.BLOCK_IDS: [list(range(20))]},
    "too many ids": {Params.BLOCK_IDS: [list(range(25))]},
    "flat ids": {Params.BLOCK_IDS: list(range(24))},
    "ids as text": {Params.BLOCK_IDS: "0123"},
    "ids of text": {Params.BLOCK_IDS: [["1"] * 24]},
    "negative id": {Params.BLOCK_IDS: [[-1, *range(23)]]},
    "truth as id": {Params.BLOCK_IDS: [[True, *range(23)]]},
    "id beyond the pool": {Params.BLOCK_IDS: [[POOL, *range(23)]]},
    "a group too many": {Params.BLOCK_IDS: [list(range(24)), []]},
    "no ids": {Params.BLOCK_IDS: None},
    "other count": {Params.NUM_TOKENS: 700},
    "no count": {Params.NUM_TOKENS: None},
}


@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_handle_is_computed(change: dict[str, Any]) -> None:
    assert judge({**handle(HELD, [FULL]), **change}, HELD).reason is Reason.MALFORMED


PROOF_CHANGES: dict[str, Any] = {
    "step zero": {Duplex.STEP: 0},
    "step of text": {Duplex.STEP: "64"},
    "marks missing": {Duplex.MARKS: []},
    "marks of numbers": {Duplex.MARKS: [1] * 11},
    "marks as text": {Duplex.MARKS: "0" * 11},
    "count below zero": {Duplex.COUNT: -1},
    "count is truth": {Duplex.COUNT: True},
    "no last": {Duplex.LAST: None},
}


@pytest.mark.parametrize("change", PROOF_CHANGES.values(), ids=PROOF_CHANGES.keys())
def test_a_malformed_proof_is_computed(change: dict[str, Any]) -> None:
    params = handle(HELD, [FULL])
    params[Params.DUPLEX] = {**params[Params.DUPLEX], **change}
    assert judge(params, HELD).reason is Reason.MALFORMED


def test_marks_are_wider_in_long_contexts() -> None:
    short = publish([1] * LONG_CONTEXT, seed_bytes=NO_SEED, groups=[FULL], total_blocks=None)
    long = publish([1] * (LONG_CONTEXT + 1), seed_bytes=NO_SEED, groups=[FULL], total_blocks=None)
    assert (short[Duplex.STEP], long[Duplex.STEP]) == (SHORT_STEP, LONG_STEP)


def test_a_partial_pull_ends_on_a_block_of_every_group() -> None:
    groups = [Group(GroupKind.FULL, 32), Group(GroupKind.FULL, 96)]
    decision = judge(handle(HELD, groups), HELD[:700], groups)
    assert decision.tokens == 576
    assert [len(ids) for ids in decision.block_ids] == [18, 6]


def test_cut_blocks_keeps_a_block_that_is_begun() -> None:
    assert cut_blocks([[1, 2, 3]], 33, [FULL]) == [[1, 2]]


TOKENS = st.lists(st.integers(0, 3), max_size=300)


@settings(deadline=None)
@given(held=TOKENS, prompt=TOKENS)
def test_never_more_is_proved_than_is_common(held: list[int], prompt: list[int]) -> None:
    published = publish(held, seed_bytes=NO_SEED, groups=[FULL], total_blocks=POOL)
    proved = proved_tokens(published, prompt, seed_bytes=NO_SEED)
    assert held[:proved] == prompt[:proved]
    assert proved <= min(len(held), len(prompt))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None)
@given(key=st.sampled_from([Params.BLOCK_IDS, Params.NUM_TOKENS, Params.DUPLEX]), value=JSON_VALUES)
def test_no_value_in_a_handle_raises(key: str, value: object) -> None:
    assert judge({**handle(HELD, [FULL]), key: value}, HELD).tokens in {0, 739}


PROOF_KEYS = [Duplex.STEP, Duplex.MARKS, Duplex.COUNT, Duplex.LAST, Duplex.GROUPS, Duplex.BLOCKS]


@settings(deadline=None)
@given(key=st.sampled_from(PROOF_KEYS), value=JSON_VALUES)
def test_no_value_in_a_proof_raises(key: str, value: object) -> None:
    params = handle(HELD, [FULL])
    params[Params.DUPLEX] = {**params[Params.DUPLEX], key: value}
    decision = judge(params, HELD)
    assert decision.tokens <= 739
