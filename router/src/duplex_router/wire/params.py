"""vLLM's kv_transfer_params as bytes: read from an engine's answer, and spliced for the next request.

The object is opaque but for the few keys read here: every other key goes on as it came.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from duplex_connector.contract import LEASE_MODEL, Duplex, Params
from duplex_connector.proof import Reason

from .errors import WireError
from .fields import Value, is_null, join_object, split_object
from .shapes import (
    EngineParams,
    HandleKeys,
    OwnParams,
    PrefillBody,
    PrefillUsage,
    decode_engine_params,
    decode_handle,
    decode_own,
    decode_prefill,
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

FINISHED_BY_ERROR: Final = "error"

_DATA_PARALLEL_SUFFIX = re.compile(r"_dp\d+\Z")


class PrefillAnswer:
    """A prefill engine's answer: its hand-off (None where it holds nothing), and what it did.

    `own_at`: where in the hand-off its `duplex` object begins; 0: not where it can be added to in place. `report`: what
    a guarded engine says in it. `token_ids`: the prompt's, as JSON, where they were asked for.
    """

    __slots__ = ("cached_tokens", "failed", "hand_off", "own_at", "prompt_tokens", "report", "token_ids")

    def __init__(self, body: PrefillBody, told: EngineParams, report: OwnParams | None, params: bytes, at: int) -> None:
        self.failed = _failed(body)
        self.hand_off = params or None
        self.own_at = at
        self.prompt_tokens = _prompt_tokens(body.usage) if body.usage is not None else 0
        self.cached_tokens = told.cached
        self.report = report
        ids = body.prompt_token_ids
        self.token_ids = None if is_null(ids) else bytes(ids)


def _failed(answer: PrefillBody) -> bool:
    """Tell whether a 200 is a failure all the same."""
    for choice in answer.choices:
        if choice.finish_reason == FINISHED_BY_ERROR:
            return True
    return not answer.choices and answer.status not in ("completed", "incomplete") and answer.type != "message"


def _prompt_tokens(usage: PrefillUsage) -> int:
    """Return the prompt's tokens, those from a cache among them."""
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return usage.prompt_tokens or usage.input_tokens + cached


def _has_ours(own: OwnParams) -> bool:
    """Tell whether a `duplex` object has a key that is the router's to add."""
    return len(own.ttl) + len(own.threshold) + len(own.keep) > 0


def read_prefill_answer(body: bytes) -> PrefillAnswer:
    """Read the body of a 200. A `finish_reason` of `error` is a failure (smg#2382). Raises WireError."""
    cut = cut_at_end(body)
    try:
        if cut is not None:
            shown, params = cut
            try:
                return _prefill_answer(decode_prefill(shown), params)
            except msgspec.DecodeError:
                pass  # the key that was found is not the one at the top
        answer = decode_prefill(body)
        return _prefill_answer(answer, b"" if is_null(answer.kv_transfer_params) else bytes(answer.kv_transfer_params))
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a prefill answer: {error}") from error


def _prefill_answer(answer: PrefillBody, params: bytes) -> PrefillAnswer:
    if not params:
        return PrefillAnswer(answer, EngineParams(), None, b"", 0)
    told, report, at = _read_params(params, decode_engine_params)
    return PrefillAnswer(answer, told, report, params, at)


_Keys = TypeVar("_Keys", EngineParams, HandleKeys)


def _read_params(params: bytes, decode: Callable[[bytes], _Keys]) -> tuple[_Keys, OwnParams | None, int]:
    """Return what params say, their `duplex` object, and where that begins if keys of ours can be added to it in place.

    It can where it stands last and is not empty, as engines write it: then both parts are JSON and are read apart, so
    that each byte is read once.
    """
    at = params.rfind(_OWN_OPENING) + len(_OWN_FIELD)
    if at > len(_OWN_FIELD) and params.endswith(_BOTH_ENDS):
        try:
            keys = decode(b"%b}" % params[: at - len(_OWN_FIELD)])
            own = decode_own(params[at:-1])
            if is_null(keys.duplex):
                return keys, own, 0 if _has_ours(own) else at
        except msgspec.DecodeError:
            pass  # what was found stands deeper
    keys = decode(params)
    return keys, None if is_null(keys.duplex) else decode_own(keys.duplex), 0


_KEY = b'"%b":' % Params.FIELD.encode()
_OPENING = _KEY + b"{"
_OWN_FIELD = f',"{Params.DUPLEX}":'.encode()
_OWN_OPENING = _OWN_FIELD + b'{"'
_BOTH_ENDS = b"}}"


def cut_at_end(data: bytes) -> tuple[bytes, bytes] | None:
    """Return an answer with null for its kv_transfer_params, and these, where they stand last as engines write them.

    None where they do not. What is cut so is right if both parts are JSON, which their readers see: then the key
    stands at the top, and once. So each byte is read once.
    """
    at = data.find(_OPENING)
    if at < 0 or not data.endswith(_BOTH_ENDS):
        return None
    at += len(_KEY)
    return b"%bnull}" % data[:at], data[at:-1]


def _with_duplex(fields: Mapping[str, Value], more: Mapping[str, bytes]) -> bytes:
    rest = {name: value for name, value in fields.items() if name != Params.DUPLEX}
    given = fields.get(Params.DUPLEX)
    inner: dict[str, Value] = dict(split_object(bytes(given))) if given and not is_null(given) else {}
    inner.update(more)
    return join_object({**rest, Params.DUPLEX: join_object(inner)})


_PULL_FAILED: Final = Reason.PULL_FAILED.value
_TOKEN_IDS_KEY = f'"{Params.PROMPT_TOKEN_IDS}":'.encode()
_TTL_KEY = f'"{Duplex.TTL}":'.encode()
_THRESHOLD_KEY = f'"{Duplex.THRESHOLD}":'.encode()
_KEEP_IT = f'"{Duplex.KEEP}":true'.encode()


@functools.lru_cache(maxsize=64)
def _number(value: float) -> bytes:
    return msgspec.json.encode(int(value) if value == int(value) else value)


def hand_off_to_decode(answer: PrefillAnswer, ttl_seconds: float, *, with_token_ids: bool) -> bytes:
    """Return a prefill engine's hand-off for the decode leg, asking that the finished turn be held for `ttl_seconds`.

    `with_token_ids`: the prompt's go along if the answer names them, which vLLM >= 0.32 then takes instead of rendering
    the messages again. Raises WireError where there is no hand-off.
    """
    params, at = answer.hand_off, answer.own_at
    if params is None:
        raise WireError("nothing is handed off")
    ttl = _number(ttl_seconds)
    if at:
        params = b"%b%b%b,%b" % (params[: at + 1], _TTL_KEY, ttl, params[at + 1 :])
    else:
        params = _with_duplex(split_object(params), {Duplex.TTL: ttl})
    token_ids = answer.token_ids
    if token_ids is None or not with_token_ids:
        return params
    if params.find(_TOKEN_IDS_KEY) >= 0 or params[:2] != b'{"':
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


@functools.lru_cache(maxsize=4096)
def _boot_of(engine_id: str) -> str:
    """Return what all ranks of an engine share of their ids."""
    return _DATA_PARALLEL_SUFFIX.sub("", engine_id)


class Handle:
    """The kv_transfer_params that a decode engine returned: they name the KV that it holds.

    `tokens`: how many it holds. `boot`: the engine process, without its data-parallel rank. `expiry` is that engine's
    own clock: it can be moved by seconds gained, never read as a time of ours. `computed_alone`: the engine could not
    read the hand-off of the turn that it ends, and computed instead.
    """

    __slots__ = ("_own_at", "_raw", "_raw_expiry", "boot", "computed_alone", "expiry", "request_id", "tokens")

    def __init__(self, raw: bytes) -> None:
        """Read a handle. Raises WireError where a key is missing that every pull needs."""
        try:
            keys, own, at = _read_params(raw, decode_handle)
        except (msgspec.DecodeError, RecursionError) as error:
            raise WireError(f"not a handle: {error}") from error
        self.request_id = keys.request_id
        self.boot = _boot_of(keys.engine_id)
        self.tokens = keys.tokens
        self.expiry = keys.expiry
        self.computed_alone = own is not None and own.reason == _PULL_FAILED
        self._raw, self._raw_expiry, self._own_at = raw, keys.expiry, at

    def encode(self) -> bytes:
        """Return the handle as JSON, its expiry as it now is: `Handle` reads it back."""
        return self._raw if self.expiry == self._raw_expiry else join_object(self._fields())

    def offer(self, threshold_tokens: int) -> bytes:
        """Return the params for a guarded prefill leg: a pull that leaves the hold where it is."""
        threshold, at, raw = _number(threshold_tokens), self._own_at, self._raw
        if at and self.expiry == self._raw_expiry:
            return b"%b%b%b,%b,%b" % (raw[: at + 1], _THRESHOLD_KEY, threshold, _KEEP_IT, raw[at + 1 :])
        more = {Duplex.THRESHOLD: threshold, Duplex.KEEP: b"true"}
        return _with_duplex(split_object(self.encode()), more)

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
