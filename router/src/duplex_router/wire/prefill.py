"""A prefill engine's answer, and what of it goes on to decode."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from duplex_connector.contract import Duplex, Params

from .errors import WireError
from .fields import is_null, is_text, join_object, split_object
from .plans import (
    OWN_COMPUTED,
    OWN_LOCAL,
    OWN_OUTCOME,
    OWN_PROVED,
    OWN_PULLED,
    OWN_REASON,
    OWN_START,
    PREFILL,
    PREFILL_CACHE_CREATION,
    PREFILL_CACHE_READ,
    PREFILL_CACHED,
    PREFILL_CHOICES,
    PREFILL_FINISH_REASON,
    PREFILL_INPUT_TOKENS,
    PREFILL_OWN,
    PREFILL_PARAMS,
    PREFILL_PARAMS_STOP,
    PREFILL_PROMPT_TOKENS,
    PREFILL_STATUS,
    PREFILL_TOKEN_IDS,
    PREFILL_TYPE,
)
from .scanner import scan
from .shapes import EngineParams, PrefillBody, PrefillUsage, decode_engine_params, decode_prefill
from .splice import FINISHED_BY_ERROR, cut_at_end, number, read_params, told_own_at, with_duplex


class Report:
    """What a guarded engine says that it made of the handle it was given; in tokens of this prompt."""

    __slots__ = ("computed", "local", "outcome", "proved", "pulled", "reason")

    def __init__(
        self, outcome: str, reason: str, *, proved: int, pulled: int, local: int, computed: int | None
    ) -> None:
        self.outcome = outcome
        self.reason = reason
        self.proved = proved
        self.pulled = pulled
        self.local = local
        self.computed = computed


class PrefillAnswer:
    """A prefill engine's answer: its hand-off (None where it holds nothing), and what it did.

    `own_at`: where in the hand-off its `duplex` object begins; 0: not where it can be added to in place. `report`: what
    a guarded engine says in it. `token_ids`: the prompt's, as JSON, where they were asked for.
    """

    __slots__ = ("cached_tokens", "failed", "hand_off", "own_at", "prompt_tokens", "report", "token_ids")

    def __init__(
        self,
        *,
        failed: bool,
        hand_off: bytes | None,
        own_at: int,
        prompt_tokens: int,
        cached_tokens: int | None,
        report: Report | None,
        token_ids: bytes | None,
    ) -> None:
        self.failed = failed
        self.hand_off = hand_off
        self.own_at = own_at
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        self.report = report
        self.token_ids = token_ids


_FINISHED: Final = ("completed", "incomplete")
_A_MESSAGE: Final = "message"


def _failed(answer: PrefillBody) -> bool:
    """Tell whether a 200 is a failure all the same."""
    for choice in answer.choices:
        if choice.finish_reason == FINISHED_BY_ERROR:
            return True
    return not answer.choices and answer.status not in _FINISHED and answer.type != _A_MESSAGE


def _prompt_tokens(usage: PrefillUsage) -> int:
    """Return the prompt's tokens, those from a cache among them."""
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return usage.prompt_tokens or usage.input_tokens + cached


def read_prefill_answer(body: bytes) -> PrefillAnswer:
    """Read the body of a 200. A `finish_reason` of `error` is a failure (smg#2382). Raises WireError."""
    found = scan(PREFILL, body, 0, len(body))
    return _told_prefill(body, found) if found is not None else _parse_prefill_answer(body)


def _parse_prefill_answer(body: bytes) -> PrefillAnswer:
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


def _told_prefill(body: bytes, found: list[Any]) -> PrefillAnswer:
    """Make an answer of what was told of it in one pass."""
    choices, start = found[PREFILL_CHOICES], found[PREFILL_PARAMS]
    if choices:
        failed = found[PREFILL_FINISH_REASON] == FINISHED_BY_ERROR
    else:
        failed = found[PREFILL_STATUS] not in _FINISHED and found[PREFILL_TYPE] != _A_MESSAGE
    cached = (found[PREFILL_CACHE_READ] or 0) + (found[PREFILL_CACHE_CREATION] or 0)
    hand_off, own_at = None, 0
    if start is not None:
        stop: int = found[PREFILL_PARAMS_STOP]
        hand_off = body[start:stop]
        if not is_text(hand_off):
            raise WireError("what is handed off is no UTF-8")
        own_at = told_own_at(body, found, PREFILL_OWN, start, stop)
    return PrefillAnswer(
        failed=failed,
        hand_off=hand_off,
        own_at=own_at,
        prompt_tokens=found[PREFILL_PROMPT_TOKENS] or (found[PREFILL_INPUT_TOKENS] or 0) + cached,
        cached_tokens=found[PREFILL_CACHED],
        report=_told_report(found, PREFILL_OWN),
        token_ids=found[PREFILL_TOKEN_IDS],
    )


def _told_report(found: list[Any], own: int) -> Report | None:
    if found[own + OWN_START] is None:
        return None
    return Report(
        found[own + OWN_OUTCOME] or "",
        found[own + OWN_REASON] or "",
        proved=found[own + OWN_PROVED] or 0,
        pulled=found[own + OWN_PULLED] or 0,
        local=found[own + OWN_LOCAL] or 0,
        computed=found[own + OWN_COMPUTED],
    )


def _prefill_answer(answer: PrefillBody, params: bytes) -> PrefillAnswer:
    told, own, at = read_params(params, decode_engine_params) if params else (EngineParams(), None, 0)
    if not is_text(params):  # only now: what is no JSON was cut at the wrong place
        raise WireError("what is handed off is no UTF-8")
    report = None
    if own is not None:
        report = Report(
            own.outcome, own.reason, proved=own.proved, pulled=own.pulled, local=own.local, computed=own.computed
        )
    ids = answer.prompt_token_ids
    return PrefillAnswer(
        failed=_failed(answer),
        hand_off=params or None,
        own_at=at,
        prompt_tokens=_prompt_tokens(answer.usage) if answer.usage is not None else 0,
        cached_tokens=told.cached,
        report=report,
        token_ids=None if is_null(ids) else bytes(ids),
    )


_TOKEN_IDS_KEY: Final = f'"{Params.PROMPT_TOKEN_IDS}":'.encode()
_TTL_KEY: Final = f'"{Duplex.TTL}":'.encode()


def hand_off_to_decode(answer: PrefillAnswer, ttl_seconds: float, *, with_token_ids: bool) -> bytes:
    """Return a prefill engine's hand-off for the decode leg, asking that the finished turn be held for `ttl_seconds`.

    `with_token_ids`: the prompt's go along if the answer names them, which vLLM >= 0.32 then takes instead of rendering
    the messages again. Raises WireError where there is no hand-off.
    """
    params, at = answer.hand_off, answer.own_at
    if params is None:
        raise WireError("nothing is handed off")
    ttl = number(ttl_seconds)
    if at:
        params = b"".join((params[: at + 1], _TTL_KEY, ttl, b",", params[at + 1 :]))
    else:
        params = with_duplex(split_object(params), {Duplex.TTL: ttl})
    token_ids = answer.token_ids
    if token_ids is None or not with_token_ids:
        return params
    if params.find(_TOKEN_IDS_KEY) >= 0 or params[:2] != b'{"':
        return join_object({**split_object(params), Params.PROMPT_TOKEN_IDS: token_ids})
    return b"{%b%b,%b" % (_TOKEN_IDS_KEY, token_ids, params[1:])
