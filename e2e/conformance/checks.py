"""What the test modules share: the variants that run on both engines, and how an answer is judged."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from typing import Final

import pytest

from duplex_connector.contract import ConnectorKind, Duplex

from .report import Report
from .turns import NoAnswerError, Reply, Turns, request
from .variants import Variant

GUARDED: Final = Variant(ConnectorKind.GUARDED)
STOCK: Final = Variant(ConnectorKind.STOCK)

PROMPT: Final = 700
"""Tokens of a first prompt: long enough for many blocks and marks, short enough for a model on two cores."""

ANSWER: Final = 40

_HEALTH_SECONDS: Final = 10
"""A living engine answers in milliseconds, on a very busy machine in a second; a dead pod's address never does."""


def over(*variants: Variant) -> pytest.MarkDecorator:
    """Run a check on the engines of these variants."""
    return pytest.mark.parametrize("variant", variants, indirect=True, ids=str, scope="session")


def verdict(tokens: Sequence[int], truth: Sequence[int]) -> str:
    """Return `right` where the answer is the plain engine's, else `wrong`."""
    return "right" if list(tokens) == list(truth) else "wrong"


def pulled(reply: Reply, variant: Variant) -> int:
    """Return the tokens that a prefill leg took from decode, on engines whose prefix caching is off."""
    if variant.connector is ConnectorKind.GUARDED:
        return int(reply.duplex[Duplex.PULLED])
    return reply.cached


def connector(variant: Variant) -> str:
    """Return the report's column."""
    return variant.connector.value.lower()


def judge(
    report: Report, turns: Turns, variant: Variant, check: str, *, prompt: Sequence[int], prefilled: Reply
) -> tuple[str, int]:
    """Finish a turn whose prefill leg is done, compare it with the plain engine, and write the row."""
    answered = turns.decode(prompt, prefilled, ANSWER)
    if answered.status != http.client.OK:
        raise AssertionError(f"the decode leg failed: {answered.status} {answered.body}")
    truth = turns.plain(prompt, ANSWER)
    seen, count = verdict(answered.tokens, truth), pulled(prefilled, variant)
    report.add(check, connector(variant), seen, pulled=count, tokens=answered.tokens, plain=truth)
    if variant.connector is ConnectorKind.GUARDED and answered.params:
        turns.release(answered.params)
    return seen, count


def outcome(
    turns: Turns, prompt: Sequence[int], handle: dict[str, object], *, seconds: float
) -> tuple[str, Reply | None]:
    """Send a prefill leg that may fail; return `200`, another status, `hang` or `engine dead`, and the answer."""
    try:
        reply = turns.prefill(prompt, handle, seconds=seconds)
    except NoAnswerError:
        return ("hang" if is_alive(turns.engines.prefill) else "engine dead"), None
    if reply.status != http.client.OK and not is_alive(turns.engines.prefill):
        return "engine dead", reply
    return str(reply.status), reply


def is_alive(url: str) -> bool:
    """Return whether an engine answers its health check."""
    try:
        return request(url, "/health", seconds=_HEALTH_SECONDS).status == http.client.OK
    except NoAnswerError:
        return False
