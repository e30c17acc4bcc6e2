"""The work queue keeps its promises for any order of calls."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from duplex_operator.runtime.work_queue import WorkQueue
from operator_tests.fake_clock import FakeClock


def queue(clock: FakeClock) -> WorkQueue[str]:
    return WorkQueue(clock, jitter=lambda: 0.0)


async def test_a_waiting_key_is_there_once() -> None:
    work = queue(FakeClock())
    work.add("a")
    work.add("a")
    assert await work.get() == "a"
    assert work.depth == 0


async def test_a_held_key_waits_until_done_and_then_comes_once() -> None:
    work = queue(FakeClock())
    work.add("a")
    await work.get()
    work.add("a")
    work.add("a")
    assert work.depth == 0
    work.done("a")
    assert work.depth == 1
    await work.get()
    work.done("a")
    assert work.depth == 0


async def test_get_waits_for_a_key() -> None:
    work = queue(FakeClock())
    getting = asyncio.create_task(work.get())
    await asyncio.sleep(0)
    assert not getting.done()
    work.add("a")
    assert await getting == "a"


async def test_two_waiting_workers_both_get_their_key() -> None:
    work = queue(FakeClock())
    workers = [asyncio.create_task(work.get()) for _ in range(2)]
    await asyncio.sleep(0)
    work.add("a")
    work.add("b")
    assert {await w for w in workers} == {"a", "b"}


async def test_of_several_delays_the_earliest_counts() -> None:
    clock = FakeClock()
    work = queue(clock)
    work.add_after("a", 10)
    work.add_after("a", 3)
    work.add_after("a", 20)
    await clock.advance(2.9)
    assert work.depth == 0
    await clock.advance(0.2)
    assert work.depth == 1
    await work.get()
    work.done("a")
    await clock.advance(60)
    assert work.depth == 0


async def test_asking_now_ends_the_delay() -> None:
    clock = FakeClock()
    work = queue(clock)
    work.add_after("a", 10)
    work.add("a")
    await work.get()
    work.done("a")
    await clock.advance(60)
    assert work.depth == 0
    assert work.delayed == 0


async def test_backoff_doubles_to_five_minutes_and_starts_anew_after_success() -> None:
    work = queue(FakeClock())
    delays = [work.retry("a") for _ in range(12)]
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    work.reset("a")
    assert work.retry("a") == 1


async def test_jitter_shortens_by_up_to_a_fifth() -> None:
    work: WorkQueue[str] = WorkQueue(FakeClock(), jitter=lambda: 1.0)
    assert work.retry("a") == 0.8


async def test_a_forgotten_key_does_not_come_back() -> None:
    clock = FakeClock()
    work = queue(clock)
    work.retry("a")
    work.forget("a")
    await clock.advance(600)
    assert work.depth == 0
    assert work.retry("a") == 1


async def test_says_how_long_keys_wait_and_are_held() -> None:
    clock = FakeClock()
    work = queue(clock)
    work.add("a")
    clock.jump(5)
    assert (work.longest_wait(), work.longest_held()) == (5, 0)
    await work.get()
    clock.jump(7)
    assert (work.longest_wait(), work.longest_held()) == (0, 7)


async def test_an_urgent_key_is_had_before_the_others_and_in_order_with_its_like() -> None:
    clock, urgent = FakeClock(), {"x", "y"}
    work: WorkQueue[str] = WorkQueue(clock, urgent=urgent.__contains__)
    for key in ("a", "x", "b", "y", "c"):
        work.add(key)
    urgent.add("c")
    work.add("c")  # it waits already, and has become urgent
    urgent.add("b")
    work.add_after("b", 10)
    assert work.depth == 5
    assert [await work.get() for _ in range(5)] == ["x", "y", "c", "b", "a"]


async def test_a_held_key_that_has_become_urgent_is_the_next() -> None:
    urgent: set[str] = set()
    work: WorkQueue[str] = WorkQueue(FakeClock(), urgent=urgent.__contains__)
    for key in ("a", "b", "a"):
        work.add(key)
    assert await work.get() == "a"
    urgent.add("a")
    work.add("a")
    work.done("a")
    assert [await work.get(), await work.get()] == ["a", "b"]


Step = tuple[str, int]
steps = st.lists(st.tuples(st.sampled_from(["add", "add_after", "retry", "get", "done", "wait"]), st.integers(0, 3)))


@given(steps)
def test_no_order_of_calls_loses_a_key_or_gives_it_to_two_workers(sequence: list[Step]) -> None:
    asyncio.run(_play(sequence))


async def _play(sequence: list[Step]) -> None:
    clock = FakeClock()
    work: WorkQueue[int] = WorkQueue(clock, urgent=lambda key: key > 1)
    held: set[int] = set()
    owed: set[int] = set()  # asked for since the key was last taken
    for action, key in sequence:
        if action in {"add", "add_after", "retry"}:
            {"add": work.add, "add_after": lambda k: work.add_after(k, 1 + k), "retry": work.retry}[action](key)
            owed.add(key)
        elif action == "get" and work.depth:
            taken = await work.get()
            assert taken not in held
            assert taken in owed
            held.add(taken)
            owed.discard(taken)
        elif action == "done" and key in held:
            work.done(key)
            held.discard(key)
        elif action == "wait":
            await clock.advance(2)
    for key in held:
        work.done(key)
    await clock.advance(600)
    assert {await work.get() for _ in range(work.depth)} == owed
