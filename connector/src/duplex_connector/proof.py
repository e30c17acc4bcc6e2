"""The proof: digests of the tokens that an engine holds, and what a reader may pull on their strength.

A holder publishes a chained digest of its token ids every `step` tokens and one over all `count` of them. A reader
computes the same chain over its own prompt and pulls only the prefix on which both agree, so that a wrong, foreign or
outdated handle costs a computation but never a wrong answer. The chain is seeded with whatever else decides KV
(adapter, cache salt). Pure and free of vLLM: the guarded connector and the simulator share it.

Digests have 128 bits: with 64, a tenant could search for two own prompts that collide (2^32 work) and poison a shared
prefix cache.
"""

from __future__ import annotations

import array
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from .contract import Duplex, Params

SHORT_STEP: Final = 64
LONG_STEP: Final = 256
LONG_CONTEXT: Final = 16_384
_DIGEST_BYTES: Final = 16


class GroupKind(StrEnum):
    """How a KV-cache group forgets: `full` keeps every block, `window` a tail of them, `state` one state at the end."""

    FULL = "full"
    WINDOW = "window"
    STATE = "state"


@dataclass(frozen=True)
class Group:
    """One KV-cache group: its kind, tokens per block, and for a window group the most blocks it exports."""

    kind: GroupKind
    block_size: int
    window_blocks: int | None = None

    def as_json(self) -> list[Any]:
        """Return the group as it stands in a handle."""
        return [self.kind.value, self.block_size, self.window_blocks]

    def blocks_for(self, tokens: int) -> int:
        """Return how many block ids a holder exports for `tokens` tokens."""
        if self.kind is GroupKind.STATE:
            return 1
        blocks = -(-tokens // self.block_size)
        return blocks if self.window_blocks is None else min(blocks, self.window_blocks)


class Outcome(StrEnum):
    """How much of a handle was proved."""

    FULL = "full"
    PARTIAL = "partial"
    NONE = "none"


class Reason(StrEnum):
    """Why a handle was not pulled whole. EMPTY where it was."""

    EMPTY = ""
    NO_PROOF = "no-proof"
    MALFORMED = "malformed"
    GROUPS_DIFFER = "groups-differ"
    DIVERGED = "diverged"
    ALL_OR_NOTHING = "all-or-nothing"
    STATE_FULL_HIT = "state-full-hit"
    BELOW_THRESHOLD = "below-threshold"
    LOCAL = "local"
    UNSUPPORTED_INPUT = "unsupported-input"
    EXPIRED = "expired"
    DISABLED = "disabled"
    PULL_FAILED = "pull-failed"
    PREEMPTED = "preempted"


@dataclass(frozen=True)
class Decision:
    """What the reader does with a handle.

    `proved`: tokens of the prompt that the proof covers. `tokens`: what remote_num_tokens becomes (0: pull nothing).
    `block_ids`: the holder's ids for them, one list per group. The pull itself covers `tokens` minus the local hit.
    """

    outcome: Outcome
    reason: Reason = Reason.EMPTY
    proved: int = 0
    tokens: int = 0
    block_ids: list[list[int]] = field(default_factory=list)


def seed(*, adapter: tuple[str, str] | None, cache_salt: str | None) -> bytes:
    """Return what besides token ids decides a prompt's KV: the adapter's (name, path) and the cache salt."""
    return json.dumps([list(adapter) if adapter else None, cache_salt], separators=(",", ":")).encode()


def step_for(count: int) -> int:
    """Return the distance of marks for `count` tokens: finer for short histories, shorter JSON for long ones."""
    return SHORT_STEP if count <= LONG_CONTEXT else LONG_STEP


def _chain(seed_bytes: bytes) -> hashlib.blake2b:
    chain = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"duplex-proof-1")
    chain.update(len(seed_bytes).to_bytes(4, "little"))
    chain.update(seed_bytes)
    return chain


def _as_bytes(token_ids: Sequence[int]) -> memoryview:
    return memoryview(array.array("I", token_ids)).cast("B")


def publish(
    token_ids: Sequence[int], *, seed_bytes: bytes, groups: Sequence[Group], total_blocks: int | None
) -> dict[str, Any]:
    """Return the `duplex` object of a handle over `token_ids`, the tokens whose KV the holder keeps.

    `total_blocks`: how many blocks the holder's pool has, so that a reader can refuse ids beyond it; None: unknown.
    """
    count = len(token_ids)
    step = step_for(count)
    data = _as_bytes(token_ids)
    chain = _chain(seed_bytes)
    marks = []
    for start in range(0, count // step * step, step):
        chain.update(data[4 * start : 4 * (start + step)])
        marks.append(chain.copy().hexdigest())
    chain.update(data[4 * step * len(marks) :])
    return {
        Duplex.STEP: step,
        Duplex.MARKS: marks,
        Duplex.COUNT: count,
        Duplex.LAST: chain.hexdigest(),
        Duplex.GROUPS: [group.as_json() for group in groups],
        Duplex.BLOCKS: total_blocks,
    }


def _matching_marks(data: memoryview, step: int, marks: Sequence[str], chain: hashlib.blake2b) -> Iterator[None]:
    for index, mark in enumerate(marks):
        end = 4 * (index + 1) * step
        if end > len(data):
            return
        chain.update(data[end - 4 * step : end])
        if chain.copy().hexdigest() != mark:
            return
        yield


def proved_tokens(published: Mapping[str, Any], prompt_ids: Sequence[int], *, seed_bytes: bytes) -> int:
    """Return how many leading tokens of the prompt are, by the digests, those that the holder keeps."""
    step, marks, count = published[Duplex.STEP], published[Duplex.MARKS], published[Duplex.COUNT]
    data = _as_bytes(prompt_ids)
    chain = _chain(seed_bytes)
    same = sum(1 for _ in _matching_marks(data, step, marks, chain))
    if same == len(marks) and len(prompt_ids) >= count:
        chain.update(data[4 * same * step : 4 * count])
        if chain.hexdigest() == published[Duplex.LAST]:
            return int(count)
    return int(same * step)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _well_formed_proof(published: object) -> bool:
    if not isinstance(published, Mapping):
        return False
    step, marks, count = (published.get(key) for key in (Duplex.STEP, Duplex.MARKS, Duplex.COUNT))
    return (
        type(step) is int
        and step > 0
        and _is_count(count)
        and isinstance(marks, list)
        and all(isinstance(mark, str) for mark in marks)
        and len(marks) == int(count or 0) // step
        and isinstance(published.get(Duplex.LAST), str)
    )


def _well_formed_ids(block_ids: object, tokens: int, groups: Sequence[Group], total_blocks: object) -> bool:
    if not isinstance(block_ids, list | tuple) or len(block_ids) != len(groups):
        return False
    limit = total_blocks if _is_count(total_blocks) else None
    for ids, group in zip(block_ids, groups, strict=True):
        if not isinstance(ids, list | tuple) or len(ids) != group.blocks_for(tokens):
            return False
        if not all(_is_count(block) and (limit is None or block < limit) for block in ids):
            return False
    return True


def _refuse(reason: Reason, proved: int = 0) -> Decision:
    return Decision(Outcome.NONE, reason, proved)


def _malformed(params: Mapping[str, Any], groups: Sequence[Group]) -> Reason | None:
    published = params.get(Params.DUPLEX)
    if not isinstance(published, Mapping) or Duplex.MARKS not in published:
        return Reason.NO_PROOF
    if not _well_formed_proof(published):
        return Reason.MALFORMED
    if published.get(Duplex.GROUPS) != [group.as_json() for group in groups]:
        return Reason.GROUPS_DIFFER
    count = published[Duplex.COUNT]
    ids_fit = _well_formed_ids(params.get(Params.BLOCK_IDS), count, groups, published.get(Duplex.BLOCKS))
    return None if ids_fit and params.get(Params.NUM_TOKENS) == count else Reason.MALFORMED


def cut_blocks(block_ids: Sequence[Sequence[int]], tokens: int, groups: Sequence[Group]) -> list[list[int]]:
    """Return the ids of the blocks that hold the first `tokens` tokens; every group must keep all its blocks."""
    return [list(ids[: -(-tokens // group.block_size)]) for ids, group in zip(block_ids, groups, strict=True)]


def decide(
    params: Mapping[str, Any],
    prompt_ids: Sequence[int] | None,
    *,
    seed_bytes: bytes,
    groups: Sequence[Group],
) -> Decision:
    """Decide what of a holder's blocks may be pulled for this prompt.

    `params` is a peer's kv_transfer_params with its `duplex` object; `prompt_ids` None where the prompt has no token
    ids alone (embeddings, media): nothing can be proved then. Never raises on malformed input: the answer is to
    compute. The local prefix hit and the threshold are the caller's to apply, on the tokens that this returns.
    """
    wrong = _malformed(params, groups)
    if wrong is None and prompt_ids is None:
        wrong = Reason.UNSUPPORTED_INPUT
    if wrong is not None or prompt_ids is None:
        return _refuse(wrong or Reason.UNSUPPORTED_INPUT)
    published = params[Params.DUPLEX]
    ids = [list(group_ids) for group_ids in params[Params.BLOCK_IDS]]
    proved = proved_tokens(published, prompt_ids, seed_bytes=seed_bytes)
    if proved == published[Duplex.COUNT]:
        if any(group.kind is GroupKind.STATE for group in groups) and proved >= len(prompt_ids):
            # The state already contains the last token, which must be computed once more to be sampled from.
            return _refuse(Reason.STATE_FULL_HIT, proved)
        return Decision(Outcome.FULL, Reason.EMPTY, proved, proved, ids)
    if any(group.kind is not GroupKind.FULL for group in groups):
        return _refuse(Reason.ALL_OR_NOTHING, proved)
    block_size = math.lcm(*(group.block_size for group in groups))
    tokens = proved // block_size * block_size
    if tokens == 0:
        return _refuse(Reason.DIVERGED, proved)
    return Decision(Outcome.PARTIAL, Reason.DIVERGED, proved, tokens, cut_blocks(ids, tokens, groups))
