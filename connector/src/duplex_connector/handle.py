"""What a request's kv_transfer_params ask of a guarded engine, checked before any vLLM code sees them.

A stock vLLM 0.33 trusts every field: a wrong type in one of them stops the engine for good. Here each field is checked
and what cannot be used is taken out, so that the worst a handle can do is to cost a computation. Pure: the guarded
connector feeds vLLM with the result, and tests need no vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .contract import KEEP_PREFIX, Duplex, Params
from .proof import Decision, Reason

_HIGHEST_PORT: Final = 65_535
_LONGEST_SECONDS: Final = 7 * 24 * 3600.0

_ADDRESS: Final = (Params.ENGINE_ID, Params.REQUEST_ID, Params.HOST, Params.PORT)
_REMOTE: Final = (*_ADDRESS, Params.BLOCK_IDS, Params.NUM_TOKENS, Params.EXPIRY_TIME)


@dataclass(frozen=True)
class Instructions:
    """The router's wishes for one request; a field of the wrong type counts as absent.

    `ttl`: seconds that a finished turn's blocks are held (0: not at all); None: the engine's own setting.
    `threshold`: fewest missing tokens worth a pull; None: the engine's own setting.
    `keep`: whether the holder keeps its blocks after the pull.
    `renew`: seconds from now by request id of the hold (0 releases); None: the request is no lease message.
    """

    ttl: float | None = None
    threshold: int | None = None
    keep: bool = False
    renew: Mapping[str, float] | None = field(default=None)


def _seconds(value: object) -> float | None:
    """Return a duration in seconds, at most a week so that no mistake pins memory for ever; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return min(float(value), _LONGEST_SECONDS)


def instructions(params: Mapping[str, Any]) -> Instructions:
    """Read the router's wishes from the `duplex` object of a request's kv_transfer_params."""
    own = params.get(Params.DUPLEX)
    if not isinstance(own, Mapping):
        return Instructions()
    threshold, renew = own.get(Duplex.THRESHOLD), own.get(Duplex.RENEW)
    leases = None
    if isinstance(renew, Mapping):
        wanted = {str(request_id): _seconds(value) for request_id, value in renew.items()}
        leases = {request_id: value for request_id, value in wanted.items() if value is not None}
    return Instructions(
        ttl=_seconds(own.get(Duplex.TTL)),
        threshold=threshold if type(threshold) is int and threshold >= 0 else None,
        keep=own.get(Duplex.KEEP) is True,
        renew=leases,
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_positive(value: object) -> bool:
    return type(value) is int and value > 0


def names_blocks(params: Mapping[str, Any]) -> bool:
    """Return whether the params claim to name KV of a peer at all; a cold turn's skeleton of nulls does not."""
    return any(params.get(key) is not None for key in (Params.BLOCK_IDS, Params.ENGINE_ID))


def is_addressed(params: Mapping[str, Any]) -> bool:
    """Return whether a peer can be reached and told by these params: every field that vLLM uses has its type."""
    port = params.get(Params.PORT)
    expiry = params.get(Params.EXPIRY_TIME)
    generation = params.get(Params.REGISTRATION_GENERATION, 0)
    return (
        all(_is_text(params.get(key)) for key in (Params.ENGINE_ID, Params.REQUEST_ID, Params.HOST))
        and _is_positive(port)
        and int(port or 0) <= _HIGHEST_PORT
        and all(_is_positive(params.get(key, 1)) for key in (Params.TP_SIZE, Params.DCP_SIZE, Params.PP_SIZE))
        and type(generation) is int
        and (expiry is None or (type(expiry) in (int, float) and math.isfinite(expiry)))
    )


def without_peer(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params with everything that points at a peer taken out: the engine computes and tells nobody."""
    kept = {key: value for key, value in params.items() if key not in (*_REMOTE, Params.DUPLEX)}
    return {**kept, Params.DO_REMOTE_PREFILL: False, Params.DO_REMOTE_DECODE: bool(params.get(Params.DO_REMOTE_DECODE))}


def telling_only(params: Mapping[str, Any], groups: int) -> dict[str, Any]:
    """Return the params so that vLLM reads nothing but tells the peer that its blocks may go.

    vLLM 0.32 and 0.33 (nixl/pull_scheduler.py, update_state_after_alloc) do so for a non-empty list of block ids
    with no token to load.
    """
    kept = {key: value for key, value in params.items() if key != Params.DUPLEX}
    return {**kept, Params.BLOCK_IDS: [[] for _ in range(groups)], Params.NUM_TOKENS: 0, Params.EXPIRY_TIME: None}


def pulling(params: Mapping[str, Any], decision: Decision, *, keep: bool) -> dict[str, Any]:
    """Return the params so that vLLM pulls what was proved, and with `keep` leaves the hold to its owner."""
    kept = {key: value for key, value in params.items() if key != Params.DUPLEX}
    request_id = params[Params.REQUEST_ID]
    return {
        **kept,
        Params.BLOCK_IDS: decision.block_ids,
        Params.NUM_TOKENS: decision.tokens,
        Params.REQUEST_ID: KEEP_PREFIX + request_id if keep else request_id,
    }


def prepared(params: Mapping[str, Any], decision: Decision, *, keep: bool, groups: int) -> dict[str, Any]:
    """Return the params as vLLM may see them, after the decision about the blocks that they name.

    `keep`: the holder is to keep its blocks, so it hears of no pull that was not begun. `groups`: KV-cache groups.
    """
    if decision.tokens > 0:
        return pulling(params, decision, keep=keep)
    if keep or decision.reason is Reason.DISABLED:
        return without_peer(params)
    return telling_only(params, groups)


def is_kept(notification: bytes) -> bool:
    """Return whether a reader's completion notification says that its pull must not consume the hold."""
    return notification.startswith(KEEP_PREFIX.encode())
