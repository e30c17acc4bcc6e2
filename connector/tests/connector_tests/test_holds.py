"""Whose blocks a decode engine keeps, and how holds end."""

from __future__ import annotations

from duplex_connector.holds import RELEASED, Counts, Holds


def three() -> Holds:
    holds = Holds()
    for name, tokens in (("a", 100), ("b", 200), ("c", 300)):
        holds.open(name, tokens=tokens, deadline=10.0)
    return holds


def test_open_holds_are_counted_with_their_tokens() -> None:
    holds = three()
    assert (len(holds), holds.tokens) == (3, 600)


def test_a_renewal_moves_the_deadline_from_now() -> None:
    holds = three()
    assert holds.apply({"a": 30.0}, now=5.0) == {"a": 35.0}
    assert holds.take_counts() == Counts(renewals=1)


def test_a_release_is_not_a_lapse() -> None:
    holds = three()
    assert holds.apply({"a": 0.0}, now=5.0) == {"a": RELEASED}
    holds.freed(["a"], now=5.1)
    assert holds.take_counts() == Counts(releases=1)
    assert holds.tokens == 500


def test_a_lapse_is_counted_at_the_deadline() -> None:
    holds = three()
    holds.freed(["b"], now=10.0)
    assert holds.take_counts() == Counts(lapses=1)


def test_a_consumed_hold_is_neither() -> None:
    holds = three()
    holds.freed(["c"], now=9.9)
    assert holds.take_counts() == Counts()
    assert len(holds) == 2


def test_a_renewed_hold_does_not_lapse_at_its_first_deadline() -> None:
    holds = three()
    holds.apply({"a": 30.0}, now=5.0)
    holds.freed(["a"], now=20.0)
    assert holds.take_counts() == Counts(renewals=1)


def test_unknown_holds_are_left_out() -> None:
    assert three().apply({"x": 30.0, "y": 0.0}, now=1.0) == {}


def test_a_released_hold_cannot_be_renewed() -> None:
    holds = three()
    holds.apply({"a": 0.0}, now=1.0)
    assert holds.apply({"a": 30.0}, now=1.1) == {}


def test_freed_requests_that_were_no_holds_do_not_count() -> None:
    holds = three()
    holds.freed(["hand-off"], now=50.0)
    assert holds.take_counts() == Counts()


def test_counts_are_taken_once() -> None:
    holds = three()
    holds.freed(["a"], now=11.0)
    holds.take_counts()
    assert holds.take_counts() == Counts()
