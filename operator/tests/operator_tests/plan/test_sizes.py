"""The arithmetic of rollouts by itself: units, capacity, and the cases that random courses of events rarely meet."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_operator.api.models import Rollout
from duplex_operator.plan.sizes import Bounds, Sizes, Standing, bounds_of, capacity, matched, next_sizes, size_of

NUMBERS = st.integers(1, 12)
TARGETS = st.builds(Sizes, NUMBERS, NUMBERS)


@pytest.mark.parametrize(
    ("given_bounds", "meant"),
    [
        ({}, (1, 0)),
        ({"maxSurge": 0}, (0, 1)),
        ({"maxUnavailable": 2}, (0, 2)),
        ({"maxUnavailable": 0}, (1, 0)),
        ({"maxSurge": 3, "maxUnavailable": 2}, (3, 2)),
    ],
)
def test_bounds_that_are_left_out(given_bounds: dict[str, int], meant: tuple[int, int]) -> None:
    assert bounds_of(Rollout.model_validate(given_bounds)) == Bounds(*meant)


@settings(deadline=None)
@given(TARGETS, st.integers(0, 12), st.integers(1, 12))
def test_a_size_has_the_capacity_that_it_is_made_for_and_no_engine_too_many(target: Sizes, up: int, down: int) -> None:
    units = min(Fraction(up, down), Fraction(min(target.prefill, target.decode)))
    size = size_of(units, target)
    assert capacity(size, target) >= units
    for less in (Sizes(size.prefill - 1, size.decode), Sizes(size.prefill, size.decode - 1)):
        if min(less.prefill, less.decode) >= 0:
            assert capacity(less, target) < units


@settings(deadline=None)
@given(TARGETS, st.builds(Sizes, st.integers(0, 15), st.integers(0, 15)))
def test_what_is_matched_fits_and_loses_no_capacity(target: Sizes, room: Sizes) -> None:
    fits = matched(room, target)
    assert fits.least(room).least(target) == fits
    assert capacity(fits, target) == capacity(room, target)


def test_of_old_revisions_what_can_serve_stays_before_what_cannot() -> None:
    serving, other = Standing("b", Sizes(4, 4), Sizes(1, 1)), Standing("a", Sizes(3, 3), Sizes(3, 3))
    new = Standing("c", Sizes(), Sizes())
    assert next_sizes(Sizes(4, 4), Bounds(1, 0), new, [serving, other], proved=False) == {
        "c": Sizes(),
        "b": Sizes(1, 1),
        "a": Sizes(3, 3),
    }


def test_old_revisions_that_rounding_leaves_no_room_beside_make_it() -> None:
    serving, other = Standing("b", Sizes(1, 1), Sizes(1, 1)), Standing("a", Sizes(1, 1), Sizes(1, 1))
    new = Standing("c", Sizes(), Sizes())
    sizes = next_sizes(Sizes(2, 3), Bounds(0, 1), new, [serving, other], proved=False)
    assert sizes == {"c": Sizes(), "b": Sizes(1, 1), "a": Sizes()}
    waits = next_sizes(Sizes(2, 3), Bounds(0, 1), new, [serving, other], proved=False, leaving=Sizes(1, 0))
    assert waits["a"] == Sizes(1, 1)
    unproved = Standing("c", Sizes(1, 2), Sizes(1, 2))
    others = [Standing("b", Sizes(1, 2), Sizes(1, 2)), other]
    assert next_sizes(Sizes(2, 3), Bounds(1, 0), unproved, others, proved=False)["a"] == Sizes(1, 1)


def test_a_role_at_zero_needs_no_old_revision() -> None:
    old, new = Standing("a", Sizes(2, 2), Sizes(2, 2)), Standing("b", Sizes(), Sizes())
    assert next_sizes(Sizes(0, 3), Bounds(1, 0), new, [old], proved=False) == {"b": Sizes(0, 3), "a": Sizes()}
