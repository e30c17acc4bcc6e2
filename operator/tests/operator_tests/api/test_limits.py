"""Bounds and ratio of a serving's sizes: kept wherever they can be, with as little change as that takes."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_operator.api import limits_of
from duplex_operator.api.limits import Limits, Range
from operator_tests.api.objects import serving

RATIO = (Fraction(1, 4), Fraction(1, 1))
FREE = Range(1, 100)


@pytest.mark.parametrize(
    ("prefill", "decode", "settled"),
    [
        ((FREE, 2), (FREE, 6), (2, 6)),
        ((FREE, 1), (FREE, 8), (2, 8)),  # too little prefill: more of it
        ((FREE, 6), (FREE, 2), (6, 6)),  # too little decode: more of it
        ((Range(1, 1), 1), (FREE, 8), (1, 4)),  # prefill cannot grow: fewer decode engines
        ((FREE, 9), (Range(1, 3), 9), (3, 3)),
        ((FREE, 200), (FREE, 200), (100, 100)),
        ((Range(0, 9), 0), (Range(0, 9), 0), (0, 0)),
        ((Range(0, 9), 0), (Range(0, 9), 3), (1, 3)),
    ],
)
def test_settled(prefill: tuple[Range, int], decode: tuple[Range, int], settled: tuple[int, int]) -> None:
    assert Limits(prefill[0], decode[0], RATIO).settle(prefill[1], decode[1]) == settled


def test_a_ratio_out_of_reach_is_said() -> None:
    assert Limits(Range(1, 1), Range(5, 9), RATIO).settle(1, 5) is None


SMALL = st.integers(0, 6)
RANGES = st.tuples(SMALL, SMALL).map(lambda pair: Range(min(pair), max(pair)))
FRACTIONS = st.tuples(st.integers(1, 5), st.integers(1, 5)).map(lambda pair: Fraction(*pair))
RATIOS = st.tuples(FRACTIONS, FRACTIONS).map(lambda pair: (min(pair), max(pair)))


def keeps(limits: Limits, prefill: int, decode: int) -> bool:
    inside = limits.prefill.clamp(prefill) == prefill and limits.decode.clamp(decode) == decode
    return inside and (limits.ratio is None or limits.ratio[0] * decode <= prefill <= limits.ratio[1] * decode)


@settings(deadline=None)
@given(RANGES, RANGES, RATIOS, SMALL, SMALL)
def test_what_can_be_kept_is_kept_and_what_keeps_all_is_left_alone(
    prefill: Range, decode: Range, ratio: tuple[Fraction, Fraction], asked_prefill: int, asked_decode: int
) -> None:
    limits = Limits(prefill, decode, ratio)
    every = [(p, d) for p in range(7) for d in range(7) if keeps(limits, p, d)]
    settled = limits.settle(asked_prefill, asked_decode)
    assert (settled is None) == (not every)
    if settled is None:
        return
    assert keeps(limits, *settled)
    if (asked_prefill, asked_decode) in every:
        assert settled == (asked_prefill, asked_decode)
    clamped = prefill.clamp(asked_prefill), decode.clamp(asked_decode)
    larger = [size for size in every if size[0] >= clamped[0] and size[1] >= clamped[1]]
    if larger:
        # Nobody gets fewer than they ask for where it can be kept by giving more, and no more than that takes.
        assert settled == (min(size[0] for size in larger), min(size[1] for size in larger))


def test_the_bounds_of_a_spec() -> None:
    fixed = limits_of(serving(prefill={"replicas": 3}).spec)
    assert (fixed.prefill, fixed.ratio) == (Range(3, 3), None)
    external = {"mode": "External"}
    assert limits_of(serving(decode={"scaling": external}).spec).decode == Range(1, 32), "8 ranks each, 256 agents"
    bounded = serving(decode={"scaling": external | {"minReplicas": 0, "maxReplicas": 9}})
    assert limits_of(bounded.spec).decode == Range(0, 9)
    guarded = serving(scaling={"ratio": {"min": "1:4", "max": "3:2"}})
    assert limits_of(guarded.spec).ratio == (Fraction(1, 4), Fraction(3, 2))
