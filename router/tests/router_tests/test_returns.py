"""What is learnt of returns: rates by time away, own evidence over others', and evidence that fades."""

import random

import pytest

from duplex_router.ledger.returns import HALF_LIFE_SECONDS, Gaps, Kind, Rates, Returns

FLAT = Rates([1e-9] * 13)


def evidence(gaps: list[float], *, gone: list[float] | None = None) -> Gaps:
    found = Gaps(0.0)
    for gap in gaps:
        found.learn(gap, 0.0, returned=True)
    for age in gone or []:
        found.learn(age, 0.0, returned=False)
    return found


def test_the_rate_of_return_is_found_again() -> None:
    draw = random.Random(1)  # noqa: S311 - no secret
    rates = evidence([draw.expovariate(1 / 60) for _ in range(4000)]).rates(FLAT)
    for age in (0.0, 20.0, 100.0):
        assert rates.chance(age, 30.0) == pytest.approx(0.393, abs=0.06), "1 - exp(-30/60), however long away"


def test_those_who_left_before_anyone_came_count_for_what_they_waited() -> None:
    kept = evidence([50.0] * 50, gone=[500.0] * 50)
    lost = evidence([50.0] * 50, gone=[1.0] * 50)
    assert kept.rates(FLAT).chance(0.0, 100.0) < lost.rates(FLAT).chance(0.0, 100.0)


def test_who_has_been_away_longer_than_all_others_is_unlikely_to_return() -> None:
    rates = evidence([5.0] * 200, gone=[900.0] * 50).rates(FLAT)
    assert rates.chance(1.0, 60.0) > 0.7
    assert rates.chance(100.0, 60.0) < 0.01


def test_chances_are_chances_and_grow_with_the_horizon() -> None:
    returns = Returns()
    for kind in Kind:
        for age in (0.0, 0.5, 3.0, 2047.9, 1e6):
            found = [returns.chance(b"t", kind, age, horizon) for horizon in (0.0, 1.0, 60.0, 3600.0)]
            assert found == sorted(found)
            assert 0.0 <= found[0] <= found[-1] < 1.0


def test_without_evidence_a_call_returns_soonest_and_a_first_turn_least() -> None:
    returns = Returns()
    first, later, calls = (returns.chance(b"t", kind, 0.0, 30.0) for kind in Kind)
    assert first < later < calls


def test_a_tenants_own_evidence_outweighs_that_of_all_and_others_profit_from_it() -> None:
    returns = Returns()
    for _ in range(300):
        returns.learn(b"quick", Kind.LATER, 2.0, 0.0, returned=True)
        returns.learn(b"never", Kind.LATER, 600.0, 0.0, returned=False)
    quick, never, new = (returns.chance(name, Kind.LATER, 1.0, 10.0) for name in (b"quick", b"never", b"new"))
    assert never < new < quick
    assert quick > 0.9
    assert never < 0.05


def test_evidence_fades() -> None:
    gaps = evidence([2.0] * 100)
    before = gaps.rates(FLAT).chance(1.0, 10.0)
    gaps.learn(2000.0, 10 * HALF_LIFE_SECONDS, returned=False)
    assert gaps.rates(FLAT).chance(1.0, 10.0) < before / 5


def test_classes_are_bounded_and_the_one_not_seen_for_longest_goes() -> None:
    returns = Returns(limit=2)
    for name in (b"a", b"b", b"a", b"c"):
        returns.learn(name, Kind.FIRST, 1.0, 0.0, returned=True)
    returns.fold()
    assert [key[0] for key in returns._own] == [b"a", b"c"]
