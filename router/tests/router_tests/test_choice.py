"""The choice of engines: load, affinity within bounds, slow start, rest after failures, and pairs that are broken."""

from collections.abc import Callable
from typing import Any

import pytest

from duplex_connector.contract import Role
from duplex_router.fleet.choice import AFFINITY_FACTOR, SLOW_START_SECONDS
from duplex_router.fleet.engines import TRIAL_SECONDS, Engine
from duplex_router.fleet.pairs import BROKEN_AFTER, FIRST_REST_SECONDS, LONGEST_REST_SECONDS, Way

from .test_fleet import Fixture, document


@pytest.fixture
def fixture() -> Fixture:
    """Return a fleet of one revision with p1, p2, p3 and d1, d2."""
    found = Fixture()
    found.fleet.take_document(document(draining=[]))
    found.serve("one-p", "p1", "p2", "p3")
    found.serve("one-d", "d1", "d2")
    return found


def prefill(fixture: Fixture, last: str = "", **more: Any) -> str:
    found = fixture.fleet.pick_prefill("one", last, **more)
    assert found is not None
    return found.key


def decode(fixture: Fixture, last: str = "", **more: Any) -> str:
    found = fixture.fleet.pick_decode("one", last, **more)
    assert found is not None
    return found.key


def engines(fixture: Fixture, role: Role) -> dict[str, Engine]:
    return {engine.key: engine for engine in fixture.fleet.members("one", role)}


def test_prefill_goes_where_the_fewest_tokens_wait(fixture: Fixture) -> None:
    for key, tokens in (("p1", 300), ("p2", 100), ("p3", 200)):
        fixture.fleet.engines[key].waiting_tokens = tokens
    assert prefill(fixture, tokens=10) == "p2"
    assert prefill(fixture, tokens=10, avoid={"p2"}) == "p3"


def test_prefill_affinity_holds_up_to_its_bound_and_not_beyond(fixture: Fixture) -> None:
    first = fixture.fleet.engines["p1"]
    # The mean is a third of what waits there; 1.25 times that and the turn's own 700 tokens is the bound: x <= 1200.
    first.waiting_tokens = 1200
    assert prefill(fixture, "p1", tokens=700) == "p1"
    first.waiting_tokens = 1201
    assert prefill(fixture, "p1", tokens=700) != "p1"
    assert prefill(fixture, "p1", tokens=700, avoid={"p1"}) != "p1"


def test_decode_goes_where_the_fewest_streams_are_and_of_equals_where_less_is_held() -> None:
    held = {"d1": 900, "d2": 100}
    fixture = Fixture()
    fixture.fleet._held_tokens = held.__getitem__
    fixture.fleet.take_document(document(draining=[]))
    fixture.serve("one-d", "d1", "d2")
    for engine in fixture.fleet.engines.values():
        engine.kv_tokens = 1000
    assert decode(fixture) == "d2"
    fixture.fleet.engines["d2"].legs = 2
    assert decode(fixture) == "d1", "what is held weighs less than two streams"


def test_decode_affinity_holds_up_to_its_bound_and_not_beyond(fixture: Fixture) -> None:
    first, second = fixture.fleet.engines["d1"], fixture.fleet.engines["d2"]
    first.legs, second.legs = 6, 2
    assert AFFINITY_FACTOR * 4 + 1 == 6
    assert decode(fixture, "d1") == "d1"
    second.legs = 1
    assert decode(fixture, "d1") == "d2"


def test_a_crowd_of_one_conversation_spreads_out(fixture: Fixture) -> None:
    for _ in range(40):
        fixture.fleet.engines[decode(fixture, "d1")].legs += 1
    assert max(engine.legs for engine in engines(fixture, Role.DECODE).values()) <= AFFINITY_FACTOR * 20 + 1


def test_an_engine_that_joins_others_gets_its_share_bit_by_bit(fixture: Fixture) -> None:
    fixture.serve("one-d", "d1", "d2", "new")
    old = [fixture.fleet.engines["d1"], fixture.fleet.engines["d2"]]
    for engine in old:
        engine.legs = 8
    assert decode(fixture) != "new"
    fixture.clock.now += SLOW_START_SECONDS / 2
    assert decode(fixture) == "new"
    fixture.fleet.engines["new"].legs = 4
    assert decode(fixture) != "new"
    fixture.clock.now += SLOW_START_SECONDS / 2
    assert decode(fixture) == "new"


def test_an_engine_that_becomes_ready_again_starts_slowly_too(fixture: Fixture) -> None:
    fixture.serve("one-d", "d1")
    fixture.serve("one-d", "d1", "d2")
    fixture.fleet.engines["d1"].legs = 4
    assert decode(fixture) == "d1"
    fixture.clock.now += SLOW_START_SECONDS
    assert decode(fixture) == "d2"


def test_engines_that_start_together_share_alike(fixture: Fixture) -> None:
    fixture.fleet.engines["d1"].legs = 1
    assert decode(fixture, "d1") == "d1", "affinity counts from the first moment"


def test_an_engine_that_failed_rests_longer_each_time_unless_it_is_the_only_one(fixture: Fixture) -> None:
    first = fixture.fleet.engines["d1"]
    fixture.fleet.engines["d2"].legs = 5
    for rest in (1, 2, 4, 8, 16, 16):
        first.failed(fixture.clock())
        fixture.clock.now += rest - 0.01
        assert decode(fixture) == "d2"
        fixture.clock.now += 0.02
        assert decode(fixture) == "d1"
    fixture.serve("one-d", "d1")
    first.failed(fixture.clock())
    assert decode(fixture) == "d1"


def test_what_has_failed_for_days_rests_as_long_as_before(fixture: Fixture) -> None:
    engine = fixture.fleet.engines["d1"]
    for _ in range(3000):
        engine.failed(fixture.clock())
        fixture.fleet.pairs.failed("p1", "d1", Way.PULL)
    assert engine.resting_until == fixture.clock() + 16
    assert [pair.resting_until for pair in fixture.fleet.pairs.broken()] == [fixture.clock() + LONGEST_REST_SECONDS]


def test_a_rested_engine_is_tried_by_one_leg_until_that_went_well(fixture: Fixture) -> None:
    first = fixture.fleet.engines["d1"]
    fixture.fleet.engines["d2"].legs = 5
    first.failed(fixture.clock())
    fixture.clock.now += 1
    assert [decode(fixture) for _ in range(3)] == ["d1", "d2", "d2"]
    fixture.clock.now += TRIAL_SECONDS
    assert [decode(fixture) for _ in range(2)] == ["d1", "d2"], "a trial without a result is followed by another"
    first.answered(fixture.clock())
    assert [decode(fixture) for _ in range(2)] == ["d1", "d1"]


def break_pair(fixture: Fixture, left: str, right: str, way: Way = Way.HAND_OFF, times: int = BROKEN_AFTER) -> None:
    for _ in range(times):
        fixture.fleet.transfer_failed(left, right, way)


def test_one_failed_transfer_breaks_no_pair(fixture: Fixture) -> None:
    break_pair(fixture, "p1", "d1", times=1)
    assert decode(fixture, "d1", prefill="p1") == "d1"
    assert fixture.fleet.pairs.broken() == []


@pytest.mark.parametrize("way", list(Way))
def test_a_broken_pair_is_avoided_and_neither_engine_is_condemned(fixture: Fixture, way: Way) -> None:
    break_pair(fixture, "p1", "d1", way)
    assert decode(fixture, "d1", prefill="p1") == "d2"
    assert decode(fixture, "d1", prefill="p2") == "d1"
    assert prefill(fixture, "p1", holder="d1") != "p1"
    assert prefill(fixture, "p1", holder="d2") == "p1"
    (pair,) = fixture.fleet.pairs.broken()
    assert (pair.prefill, pair.decode, pair.failures[way]) == ("p1", "d1", BROKEN_AFTER)


def test_a_prefill_engine_that_no_decode_engine_can_read_from_is_avoided(fixture: Fixture) -> None:
    fixture.fleet.engines["p1"].waiting_tokens = -1
    for key in ("d1", "d2"):
        fixture.fleet.pairs.failed("p1", key, Way.HAND_OFF)
        fixture.fleet.pairs.failed("p1", key, Way.HAND_OFF)
    assert prefill(fixture) != "p1"


def test_a_broken_pair_is_used_where_there_is_no_other(fixture: Fixture) -> None:
    break_pair(fixture, "p1", "d1")
    assert decode(fixture, prefill="p1", avoid={"d2"}) == "d1", "a broken pair, before an engine that failed this turn"
    fixture.serve("one-d", "d1")
    assert decode(fixture, prefill="p1") == "d1"


def test_a_broken_pair_is_tried_again_by_one_turn_and_rests_longer_each_time(fixture: Fixture) -> None:
    break_pair(fixture, "p1", "d1")
    rests = [FIRST_REST_SECONDS * 2**times for times in range(4)] + [LONGEST_REST_SECONDS] * 2
    for rest in rests:
        fixture.clock.now += rest - 0.01
        assert decode(fixture, "d1", prefill="p1") == "d2"
        fixture.clock.now += 0.02
        assert [decode(fixture, "d1", prefill="p1") for _ in range(2)] == ["d1", "d2"]
        fixture.fleet.pairs.failed("p1", "d1", Way.HAND_OFF)
    fixture.fleet.transfer_worked("p1", "d1", Way.PULL)
    assert decode(fixture, "d1", prefill="p1") == "d2", "the other way says nothing of this one"
    fixture.fleet.transfer_worked("p1", "d1", Way.HAND_OFF)
    assert decode(fixture, "d1", prefill="p1") == "d1"
    assert not fixture.fleet.pairs


def test_an_engine_that_fails_with_two_partners_is_blamed_itself(fixture: Fixture) -> None:
    fixture.fleet.transfer_failed("p1", "d1", Way.HAND_OFF)
    fixture.fleet.transfer_worked("p2", "d1", Way.HAND_OFF)
    fixture.fleet.transfer_failed("p2", "d1", Way.HAND_OFF)
    assert fixture.fleet.engines["d1"].failures == 0, "it worked with one of them in between"
    fixture.fleet.transfer_failed("p3", "d1", Way.HAND_OFF)
    assert fixture.fleet.engines["d1"].failures == 1
    assert [fixture.fleet.engines[key].failures for key in ("p1", "p2", "p3")] == [0, 0, 0]


def gone_and_back(fixture: Fixture) -> None:
    fixture.serve("one-d", "d2")
    fixture.serve("one-d", "d1", "d2")


def unready_and_back(fixture: Fixture) -> None:
    fixture.serve("one-d", "d1", ready=False)
    fixture.serve("one-d", "d1")


def booted_anew(fixture: Fixture) -> None:
    fixture.fleet.booted(fixture.fleet.engines["d1"], "boot-2")


@pytest.mark.parametrize("change", [gone_and_back, unready_and_back, booted_anew])
def test_a_pair_is_forgotten_with_a_life_of_its_engine(fixture: Fixture, change: Callable[[Fixture], None]) -> None:
    fixture.fleet.booted(fixture.fleet.engines["d1"], "boot-1")
    break_pair(fixture, "p1", "d1")
    fixture.fleet.booted(fixture.fleet.engines["d1"], "boot-1")
    assert fixture.fleet.pairs
    change(fixture)
    assert not fixture.fleet.pairs
