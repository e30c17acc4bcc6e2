"""HELD and the estimate: in bytes where an engine has said how many a token takes, in tokens where none has."""

import pytest

from duplex_operator.plan import RouterStats
from duplex_operator.plan.stats import total
from duplex_operator.plan.status import estimate_status, retention_status

from . import build

STATS = RouterStats(conversations=3, held_tokens=150_000, kv_bytes_per_token=262_144, decode_kv_tokens=1_000_000)


def test_held_is_in_bytes_and_has_a_budget() -> None:
    held = retention_status(build.serving(), total([STATS]))
    assert (held.tokens, held.bytes, held.summary) == (150_000, 150_000 * 262_144, "36Gi")
    assert held.budget_bytes == 500_000 * 262_144


def test_held_is_in_tokens_where_the_size_is_not_known() -> None:
    held = retention_status(build.serving(), total([RouterStats(held_tokens=7)]))
    assert (held.bytes, held.summary, held.budget_bytes) == (None, "7 tokens", None)


@pytest.mark.parametrize(("longest", "conversations"), [(40_000, 12), (None, None)])
def test_the_estimate_counts_whole_conversations_of_the_longest_context(
    longest: int | None, conversations: int | None
) -> None:
    serving = build.serving(model={"id": "tiny"} | ({"maxLength": longest} if longest else {}))
    estimate = estimate_status(serving, total([STATS]))
    assert estimate is not None
    assert (estimate.kv_bytes_per_token, estimate.decode_kv_tokens) == (262_144, 1_000_000)
    assert estimate.max_held_conversations == conversations


def test_nothing_is_estimated_before_an_engine_has_said_its_size() -> None:
    assert estimate_status(build.serving(), total([])) is None
