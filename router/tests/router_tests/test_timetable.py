"""What is due when, and that nothing else is looked at."""

import random

import pytest

from duplex_router.ledger.timetable import Timetable

from .test_ledger import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_item_is_due_once_and_not_before_its_second(clock: Clock) -> None:
    table: Timetable[str] = Timetable(clock)
    table.put("a", 103.7)
    assert table.due(102.9) == []
    assert table.due(103.7) == ["a"]
    assert table.due(1000.0) == []
    assert len(table) == 0


def test_what_is_put_again_is_due_at_the_new_time_only(clock: Clock) -> None:
    table: Timetable[str] = Timetable(clock)
    table.put("a", 105.0)
    table.put("a", 110.0)
    assert table.due(109.0) == []
    assert table.due(110.0) == ["a"]


def test_what_is_overdue_already_comes_at_the_next_tick(clock: Clock) -> None:
    table: Timetable[str] = Timetable(clock)
    table.due(120.0)
    table.put("a", 101.0)
    assert table.due(121.0) == ["a"]


def test_what_is_dropped_is_never_due(clock: Clock) -> None:
    table: Timetable[str] = Timetable(clock)
    table.put("a", 105.0)
    table.drop("a")
    table.drop("never there")
    assert table.due(200.0) == []


def test_it_says_the_same_as_a_look_at_everything(clock: Clock) -> None:
    rng = random.Random(7)  # noqa: S311 - seeded on purpose
    table: Timetable[int] = Timetable(clock)
    expected: dict[int, float] = {}
    now = clock.now
    for _ in range(3000):
        item, when = rng.randrange(60), now + rng.uniform(0, 30)
        if rng.random() < 0.3:
            table.drop(item)
            expected.pop(item, None)
        else:
            table.put(item, when)
            expected[item] = max(float(int(when)), float(int(now) + (now > clock.now)))
        if rng.random() < 0.2:
            now += rng.uniform(0, 3)
            due = {item for item, when in expected.items() if int(when) <= int(now)}
            assert set(table.due(now)) == due
            for item in due:
                del expected[item]
    assert len(table) == len(expected)
