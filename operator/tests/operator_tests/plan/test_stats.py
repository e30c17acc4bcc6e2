"""A router's /stats: what is well-formed is taken over, nothing raises, and totals add up."""

from hypothesis import given
from hypothesis import strategies as st

from duplex_operator.plan import RouterStats, parse_stats
from duplex_operator.plan.observed import BrokenPair, Canary, Reuse
from duplex_operator.plan.stats import total

DOCUMENT = {
    "fleetVersion": [3, 41],
    "revisions": {
        "abc": {
            "servedTokens": 7,
            "bytesMoved": 4000,
            "canary": {"lastSuccess": 1.5, "reused": True, "failures": 0, "message": "second turn: full"},
        }
    },
    "turns": 9,
    "reuse": {"eligible": 5, "full": 3, "partial": 1, "savedPrefillTokens": 99, "rejected": {"stale": 1}},
    "retention": {"conversations": 2, "tokens": 1024},
    "kv": {"bytesPerToken": 8192, "decodeTokens": 100_000},
    "transport": {"backend": "UCX", "bytesMoved": 4096},
    "recentReuse": {"seconds": 900, "eligible": 2, "full": 1, "partial": 0, "rejected": {"diverged": 1}},
    "brokenPairs": [{"prefill": "p", "decode": "d", "since": 1.7e9, "failures": 2}, {"prefill": "q"}, 7],
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def test_the_whole_document() -> None:
    assert parse_stats(DOCUMENT) == RouterStats(
        fleet_version=(3, 41),
        served_tokens={"abc": 7},
        bytes_by_revision={"abc": 4000},
        canaries={"abc": Canary(last_success=1.0, reused=True, message="second turn: full")},
        broken=(BrokenPair("p", "d", 1.7e9),),
        turns=9,
        reuse=Reuse(5, 3, 1, {"stale": 1}),
        recent=Reuse(2, 1, 0, {"diverged": 1}),
        saved_prefill_tokens=99,
        conversations=2,
        held_tokens=1024,
        kv_bytes_per_token=8192,
        decode_kv_tokens=100_000,
        backend="UCX",
        bytes_moved=4096,
    )


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(DOCUMENT, json_values)) | json_values)
def test_nothing_that_is_json_raises(document: object) -> None:
    stats = parse_stats(document)
    assert stats.turns >= 0
    assert len(stats.reuse.rejected) <= 32


def test_totals_add_up() -> None:
    one = parse_stats(DOCUMENT)
    other = RouterStats(served_tokens={"abc": 1, "def": 2}, reuse=Reuse(6, rejected={"stale": 4, "prefix": 2}))
    both = total([one, other])
    assert both.served_tokens == {"abc": 8, "def": 2}
    assert both.reuse == Reuse(11, 3, 1, {"stale": 5, "prefix": 2})
    assert (both.turns, both.backend, both.answered) == (9, "UCX", True)
    assert (both.kv_bytes_per_token, both.decode_kv_tokens) == (8192, 100_000)
    assert not total([]).answered


def test_routers_that_read_the_same_engines_do_not_count_their_bytes_twice() -> None:
    one = parse_stats(DOCUMENT)
    both = total([one, RouterStats(bytes_moved=5000, bytes_by_revision={"abc": 5000})])
    assert (both.bytes_moved, both.bytes_by_revision) == (5000, {"abc": 5000})


def test_of_the_routers_canaries_the_one_that_came_through_last_speaks() -> None:
    def told(*canaries: Canary) -> Canary:
        return total([RouterStats(canaries={"abc": canary}) for canary in canaries]).canaries["abc"]

    old, new, failing = Canary(1.0, reused=True), Canary(2.0, reused=False), Canary(3.0, reused=True, failures=4)
    assert told(old, new) == told(new, old) == new
    assert told(failing, old) == old
    assert told(failing) == failing
