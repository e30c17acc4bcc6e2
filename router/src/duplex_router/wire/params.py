"""vLLM's kv_transfer_params as bytes: read from an engine's answer, and spliced for the next request.

The object is opaque but for the few keys read here: every other key goes on as it came.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from duplex_connector.contract import LEASE_MODEL, Duplex, Params
from duplex_connector.proof import Reason

from .errors import WireError
from .fields import Value, is_text, join_object, split_object
from .plans import (
    HANDLE_BLOCK_IDS,
    HANDLE_ENGINE_ID,
    HANDLE_EXPIRY,
    HANDLE_HOST,
    HANDLE_OWN,
    HANDLE_PORT,
    HANDLE_REQUEST_ID,
    HANDLE_START,
    HANDLE_STOP,
    HANDLE_TOKENS,
    OWN_REASON,
)
from .shapes import decode_handle
from .splice import number, read_params, told_own_at, with_duplex

MISS: Final = msgspec.json.encode(
    {
        Params.DO_REMOTE_DECODE: True,
        Params.DO_REMOTE_PREFILL: False,
        Params.ENGINE_ID: None,
        Params.BLOCK_IDS: None,
        Params.HOST: None,
        Params.PORT: None,
    }
)
"""What a prefill leg carries without a handle."""

_DATA_PARALLEL_SUFFIX: Final = re.compile(r"_dp\d+\Z")


_PULL_FAILED: Final = Reason.PULL_FAILED.value
_THRESHOLD_KEY: Final = f'"{Duplex.THRESHOLD}":'.encode()
_KEEP_IT: Final = f'"{Duplex.KEEP}":true'.encode()


def decode_alone(ttl_seconds: float) -> bytes:
    """Return the params of a decode leg that nothing is handed to, whose own KV shall be held."""
    fields = {Params.DO_REMOTE_PREFILL: b"false", Params.DO_REMOTE_DECODE: b"false"}
    return with_duplex(fields, {Duplex.TTL: number(ttl_seconds)})


_LEASE: Final = join_object(
    {"model": msgspec.json.encode(LEASE_MODEL), "prompt": b'"."', "max_tokens": b"1", Params.FIELD: b""}
)[:-1]
_RENEWAL: Final = with_duplex(
    {Params.DO_REMOTE_PREFILL: b"true", Params.DO_REMOTE_DECODE: b"false"}, {Duplex.RENEW: b"%b"}
)


def lease_body(params: bytes) -> bytes:
    """Return the body of a request that every engine refuses before admission and whose params it acts on all the same.

    A stock prefill engine tells the holder to free, a guarded decode engine sets deadlines.
    """
    return b"%b%b}" % (_LEASE, params)


def renewals(seconds: Mapping[str, float]) -> bytes:
    """Return the params that give holds of one guarded engine new deadlines from now; 0 releases."""
    wanted = {request: int(value) if value == int(value) else value for request, value in seconds.items()}
    return _RENEWAL % msgspec.json.encode(wanted)


_boots: dict[str, str] = {}
MAX_KNOWN_BOOTS: Final = 4096


def _boot_of(engine_id: str) -> str:
    """Return what all ranks of an engine share of their ids."""
    known = _boots.get(engine_id)
    if known is None:
        if len(_boots) >= MAX_KNOWN_BOOTS:
            _boots.clear()
        known = _boots[engine_id] = _DATA_PARALLEL_SUFFIX.sub("", engine_id)
    return known


class Handle:
    """The kv_transfer_params that a decode engine returned: they name the KV that it holds.

    `tokens`: how many it holds. `boot`: the engine process, without its data-parallel rank. `expiry` is that engine's
    own clock: it can be moved by seconds gained, never read as a time of ours. `computed_alone`: the engine could not
    read the hand-off of the turn that it ends, and computed instead.
    """

    __slots__ = ("_own_at", "_raw", "_raw_expiry", "boot", "computed_alone", "expiry", "request_id", "tokens")

    def __init__(
        self,
        raw: bytes,
        request_id: str,
        engine_id: str,
        tokens: int,
        expiry: float | None,
        *,
        own_at: int,
        computed_alone: bool,
    ) -> None:
        self.request_id = request_id
        self.boot = _boot_of(engine_id)
        self.tokens = tokens
        self.expiry = expiry
        self.computed_alone = computed_alone
        self._raw, self._raw_expiry, self._own_at = raw, expiry, own_at

    def encode(self) -> bytes:
        """Return the handle as JSON, its expiry as it now is: `read_handle` reads it back."""
        return self._raw if self.expiry == self._raw_expiry else join_object(self._fields())

    def offer(self, threshold_tokens: int) -> bytes:
        """Return the params for a guarded prefill leg: a pull that leaves the hold where it is."""
        threshold, at, raw = number(threshold_tokens), self._own_at, self._raw
        if at and self.expiry == self._raw_expiry:
            return b"".join((raw[: at + 1], _THRESHOLD_KEY, threshold, b",", _KEEP_IT, b",", raw[at + 1 :]))
        more = {Duplex.THRESHOLD: threshold, Duplex.KEEP: b"true"}
        return with_duplex(split_object(self.encode()), more)

    def trimmed(self, tokens: int, block_size: int) -> bytes | None:
        """Return the params for a stock prefill leg, cut to the first `tokens` tokens.

        `tokens` is a multiple of `block_size`. None where the groups' block lists are not all whole: then no part of
        them can be named.
        """
        fields = self._fields()
        groups = msgspec.json.decode(fields[Params.BLOCK_IDS], type=list[list[int]])
        held_blocks = -(-self.tokens // block_size)
        if not groups or any(len(ids) != held_blocks for ids in groups) or not 0 < tokens <= self.tokens:
            return None
        fields[Params.BLOCK_IDS] = msgspec.json.encode([ids[: tokens // block_size] for ids in groups])
        fields[Params.NUM_TOKENS] = msgspec.json.encode(tokens)
        return join_object(fields)

    def release(self) -> bytes:
        """Return the params that make a stock prefill engine tell the holder to free."""
        fields = self._fields()
        fields[Params.DO_REMOTE_PREFILL] = b"true"
        fields[Params.DO_REMOTE_DECODE] = b"false"
        return join_object(fields)

    def _fields(self) -> dict[str, Value]:
        fields: dict[str, Value] = dict(split_object(self._raw))
        if self.expiry is not None:
            fields[Params.EXPIRY_TIME] = msgspec.json.encode(self.expiry)
        return fields


def read_handle(raw: bytes) -> Handle:
    """Read a handle. Raises WireError where it is no text, or a key is missing that every pull needs."""
    if not is_text(raw):
        raise WireError("not a handle: not UTF-8")
    try:
        keys, own, at = read_params(raw, decode_handle)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a handle: {error}") from error
    alone = own is not None and own.reason == _PULL_FAILED
    return Handle(raw, keys.request_id, keys.engine_id, keys.tokens, keys.expiry, own_at=at, computed_alone=alone)


def told_handle(data: bytes, found: list[Any], at: int) -> Handle | None:
    """Make a handle of what a plan has told of it, from `at` on in `found`; None where that is not enough for one."""
    if (
        found[at + HANDLE_REQUEST_ID] is None
        or found[at + HANDLE_ENGINE_ID] is None
        or found[at + HANDLE_BLOCK_IDS] is None
        or found[at + HANDLE_HOST] is None
        or found[at + HANDLE_PORT] is None
        or found[at + HANDLE_TOKENS] is None
    ):
        return None
    start: int = found[at + HANDLE_START]
    stop: int = found[at + HANDLE_STOP]
    expiry: float | None = None
    if found[at + HANDLE_EXPIRY] is not None:
        try:
            expiry = float(found[at + HANDLE_EXPIRY])
        except ValueError:
            return None
        if not math.isfinite(expiry):
            return None
    own = at + HANDLE_OWN
    raw = data[start:stop]
    if not is_text(raw):
        return None
    return Handle(
        raw,
        found[at + HANDLE_REQUEST_ID],
        found[at + HANDLE_ENGINE_ID],
        found[at + HANDLE_TOKENS],
        expiry,
        own_at=told_own_at(data, found, own, start, stop),
        computed_alone=found[own + OWN_REASON] == _PULL_FAILED,
    )
