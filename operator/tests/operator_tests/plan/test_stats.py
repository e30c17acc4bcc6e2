"""A router's /stats: what is well-formed is taken over, nothing raises, and totals add up."""

from hypothesis import given
from hypothesis import strategies as st

from duplex_operator.plan import RouterStats, parse_stats
from duplex_operator.plan.stats import total

DOCUMENT = {
    "fleetVersion": [3, 41],
    "revisions": {"abc": {"servedTokens": 7}},
    "turns": 9,
    "reuse": {"eligible": 5, "full": 3, "partial": 1, "savedPrefillTokens": 99, "rejected": {"stale": 1}},
    "retention": {"conversations": 2, "tokens": 1024},
    "kv": {"bytesPerToken": 8192, "decodeTokens": 100_000},
    "transport": {"backend": "UCX", "bytesMoved": 4096},
    "canary": {"lastSuccess": 1, "reused": True, "message": ""},
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def test_the_whole_document() -> None:
    assert parse_stats(DOCUMENT) == RouterStats(
        fleet_version=(3, 41),
        served_tokens={"abc": 7},
        turns=9,
        eligible=5,
        full=3,
        partial=1,
        saved_prefill_tokens=99,
        rejected={"stale": 1},
        conversations=2,
        held_tokens=1024,
        kv_bytes_per_token=8192,
        decode_kv_tokens=100_000,
        backend="UCX",
        bytes_moved=4096,
        canary_reused=True,
    )


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(DOCUMENT, json_values)) | json_values)
def test_nothing_that_is_json_raises(document: object) -> None:
    stats = parse_stats(document)
    assert stats.turns >= 0
    assert len(stats.rejected) <= 32


def test_totals_add_up_and_any_canary_that_reused_counts() -> None:
    one = parse_stats(DOCUMENT)
    other = RouterStats(served_tokens={"abc": 1, "def": 2}, canary_reused=False, rejected={"stale": 4, "prefix": 2})
    both = total([one, other])
    assert both.served_tokens == {"abc": 8, "def": 2}
    assert both.rejected == {"stale": 5, "prefix": 2}
    assert both.canary_reused is True
    assert (both.turns, both.backend) == (9, "UCX")
    assert (both.kv_bytes_per_token, both.decode_kv_tokens) == (8192, 100_000)
    assert total([]).canary_reused is None
