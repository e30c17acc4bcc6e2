"""vLLM's kv_transfer_params as bytes: read from an engine's answer, and spliced for the next request.

The object is opaque but for the few keys read here: every other key goes on as it came.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from duplex_connector.contract import LEASE_MODEL, Duplex, Params
from duplex_connector.proof import Reason

from .errors import WireError
from .fields import NULL, Value, is_null, join_object, split_object
from .shapes import (
    EngineParams,
    PulledReport,
    decode_complaint,
    decode_engine_params,
    decode_handle,
    decode_prefill,
    decode_report,
)

MISS = msgspec.json.encode(
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

_DATA_PARALLEL_SUFFIX = re.compile(r"_dp\d+\Z")


@dataclass(slots=True)
class PrefillAnswer:
    """A prefill engine's answer: its hand-off (None where it holds nothing), and what it did.

    `own`: the hand-off's `duplex` object. `token_ids`: the prompt's, as JSON, where they were asked for.
    """

    failed: bool
    hand_off: bytes | None
    prompt_tokens: int
    cached_tokens: int | None
    report: PulledReport | None
    own: bytes = NULL
    token_ids: bytes | None = None


def read_prefill_answer(body: bytes) -> PrefillAnswer:
    """Read the body of a 200. A `finish_reason` of `error` is a failure (smg#2382). Raises WireError."""
    try:
        answer = decode_prefill(body)
        given = not is_null(answer.kv_transfer_params)
        told = decode_engine_params(answer.kv_transfer_params) if given else EngineParams()
        report = None if is_null(told.duplex) else decode_report(told.duplex)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a prefill answer: {error}") from error
    return PrefillAnswer(
        failed=answer.failed(),
        hand_off=bytes(answer.kv_transfer_params) if given else None,
        prompt_tokens=answer.usage.prompt() if answer.usage else 0,
        cached_tokens=told.cached,
        report=report,
        own=bytes(told.duplex),
        token_ids=None if is_null(answer.prompt_token_ids) else bytes(answer.prompt_token_ids),
    )


def _with_duplex(fields: Mapping[str, Value], more: Mapping[str, bytes]) -> bytes:
    rest = {name: value for name, value in fields.items() if name != Params.DUPLEX}
    given = fields.get(Params.DUPLEX)
    inner: dict[str, Value] = dict(split_object(bytes(given))) if given and not is_null(given) else {}
    inner.update(more)
    return join_object({**rest, Params.DUPLEX: join_object(inner)})


_REASON = b'"reason"'
_OWN_KEY = f'"{Params.DUPLEX}":'.encode()
_TOKEN_IDS_KEY = f'"{Params.PROMPT_TOKEN_IDS}":'.encode()


def _add_to_own(params: bytes, own: bytes, more: Mapping[str, bytes]) -> bytes:
    """Return params with more keys in their `duplex` object, `own`: in place where it stands last, as engines write it.

    Raises WireError where they are no JSON object.
    """
    names = [b'"%b":' % name.encode() for name in more]
    if own[:2] == b'{"' and params.endswith(b"%b%b}" % (_OWN_KEY, own)):
        for name in names:
            if name in own:
                break
        else:
            added = b",".join([name + value for name, value in zip(names, more.values(), strict=True)])
            return b"%b{%b,%b}" % (params[: -len(own) - 1], added, own[1:])
    return _with_duplex(split_object(params), more)


@functools.lru_cache(maxsize=64)
def _number(value: float) -> bytes:
    return msgspec.json.encode(int(value) if value == int(value) else value)


def hand_off_to_decode(params: bytes, own: bytes, ttl_seconds: float, token_ids: bytes | None = None) -> bytes:
    """Return a prefill engine's hand-off for the decode leg, asking that the finished turn be held for `ttl_seconds`.

    `own`: its `duplex` object. `token_ids`: the prompt's, which vLLM >= 0.32 then takes instead of rendering the
    messages again.
    """
    params = _add_to_own(params, own, {Duplex.TTL: _number(ttl_seconds)})
    if token_ids is None:
        return params
    if _TOKEN_IDS_KEY in params or params[:2] != b'{"':
        return join_object({**split_object(params), Params.PROMPT_TOKEN_IDS: token_ids})
    return b"{%b%b,%b" % (_TOKEN_IDS_KEY, token_ids, params[1:])


def decode_alone(ttl_seconds: float) -> bytes:
    """Return the params of a decode leg that nothing is handed to, whose own KV shall be held."""
    fields = {Params.DO_REMOTE_PREFILL: b"false", Params.DO_REMOTE_DECODE: b"false"}
    return _with_duplex(fields, {Duplex.TTL: _number(ttl_seconds)})


def lease_body(params: bytes) -> bytes:
    """Return the body of a request that every engine refuses before admission and whose params it acts on all the same.

    A stock prefill engine tells the holder to free, a guarded decode engine sets deadlines.
    """
    fields = {"model": msgspec.json.encode(LEASE_MODEL), "prompt": b'"."', "max_tokens": b"1", Params.FIELD: params}
    return join_object(fields)


def renewals(seconds: Mapping[str, float]) -> bytes:
    """Return the params that give holds of one guarded engine new deadlines from now; 0 releases."""
    fields = {Params.DO_REMOTE_PREFILL: b"true", Params.DO_REMOTE_DECODE: b"false"}
    wanted = join_object({request: _number(value) for request, value in seconds.items()})
    return _with_duplex(fields, {Duplex.RENEW: wanted})


class Handle:
    """The kv_transfer_params that a decode engine returned: they name the KV that it holds.

    `tokens`: how many it holds. `boot`: the engine process, without its data-parallel rank. `expiry` is that engine's
    own clock: it can be moved by seconds gained, never read as a time of ours. `computed_alone`: the engine could not
    read the hand-off of the turn that it ends, and computed instead.
    """

    __slots__ = ("_own_size", "_raw", "_raw_expiry", "boot", "computed_alone", "expiry", "request_id", "tokens")

    def __init__(self, raw: bytes) -> None:
        """Read a handle. Raises WireError where a key is missing that every pull needs."""
        try:
            keys = decode_handle(raw)
            own = bytes(keys.duplex)
            complaint = decode_complaint(own) if _REASON in own else None
        except (msgspec.DecodeError, RecursionError) as error:
            raise WireError(f"not a handle: {error}") from error
        self.request_id = keys.request_id
        self.boot = _DATA_PARALLEL_SUFFIX.sub("", keys.engine_id)
        self.tokens = keys.tokens
        self.expiry = keys.expiry
        self.computed_alone = complaint is not None and complaint.reason == Reason.PULL_FAILED
        self._raw, self._raw_expiry, self._own_size = raw, keys.expiry, len(own)

    def encode(self) -> bytes:
        """Return the handle as JSON, its expiry as it now is: `Handle` reads it back."""
        return self._raw if self.expiry == self._raw_expiry else join_object(self._fields())

    def offer(self, threshold_tokens: int) -> bytes:
        """Return the params for a guarded prefill leg: a pull that leaves the hold where it is."""
        more = {Duplex.THRESHOLD: _number(threshold_tokens), Duplex.KEEP: b"true"}
        params = self.encode()
        return _add_to_own(params, params[-1 - self._own_size : -1], more)

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
