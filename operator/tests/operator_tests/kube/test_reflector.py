"""The reflector against a fake API server: it converges whatever breaks, and says what changed, once."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from duplex_kube.api import PODS, Selection
from duplex_kube.errors import ForbiddenError, TransientError
from duplex_kube.reflector import ITEMS_AT_ONCE, Change, Reflector
from operator_tests.fake_clock import FakeClock, settle
from operator_tests.fake_kube import FakeKube


def pod(name: str, *, phase: str = "Running", labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "n", "labels": labels or {"a": "b"}}, "status": {"phase": phase}}


class Watcher:
    def __init__(self, api: FakeKube, clock: FakeClock) -> None:
        self.changes: list[Change[str]] = []
        self.reflector: Reflector[str] = Reflector(
            api,
            PODS,
            Selection("n", label_selector="a=b"),
            trim=lambda obj: str(obj["status"]["phase"]),
            on_change=self.changes.append,
            clock=clock.now,
            sleep=clock.sleep,
        )

    def names(self) -> dict[str, str]:
        return {key[1]: record for key, record in self.reflector.records.items()}


@asynccontextmanager
async def watching(api: FakeKube, clock: FakeClock) -> AsyncIterator[Watcher]:
    watcher = Watcher(api, clock)
    task = asyncio.create_task(watcher.reflector.run())
    try:
        await settle()
        yield watcher
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.fixture
def api() -> FakeKube:
    return FakeKube()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def test_lists_then_follows(api: FakeKube, clock: FakeClock) -> None:
    await api.create(pod("old"), PODS)
    await api.create(pod("other", labels={"a": "c"}), PODS)
    async with watching(api, clock) as watcher:
        assert watcher.reflector.synced.is_set()
        assert watcher.names() == {"old": "Running"}
        await api.create(pod("new", phase="Pending"), PODS)
        await api.apply(pod("new"), PODS, field_manager="m")
        await api.delete(PODS, "n", "old")
        await settle()
        assert watcher.names() == {"new": "Running"}
        assert [(c.key[1], c.old, c.new) for c in watcher.changes] == [
            ("old", None, "Running"),
            ("new", None, "Pending"),
            ("new", "Pending", "Running"),
            ("old", "Running", None),
        ]


async def test_what_the_record_leaves_out_is_no_change(api: FakeKube, clock: FakeClock) -> None:
    await api.create(pod("p"), PODS)
    async with watching(api, clock) as watcher:
        await api.apply({**pod("p"), "spec": {"nodeName": "x"}}, PODS, field_manager="m")
        await settle()
        assert len(watcher.changes) == 1


async def test_lists_in_chunks(api: FakeKube, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(1201):
        await api.create(pod(f"p{index}"), PODS)
    async with watching(api, clock) as watcher:
        await watcher.reflector.synced.wait()
        assert len(watcher.names()) == 1201


async def test_a_long_list_lets_others_have_their_turn(api: FakeKube, clock: FakeClock) -> None:
    for index in range(400):
        await api.create(pod(f"p{index}"), PODS)
    taken: list[int] = []
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(len(taken))
            await asyncio.sleep(0)

    watcher = Watcher(api, clock)
    reflector = Reflector(
        api,
        PODS,
        watcher.reflector.selection,
        trim=lambda _: taken.append(1),
        on_change=lambda _: None,
        clock=clock.now,
        sleep=clock.sleep,
    )
    tasks = [asyncio.create_task(reflector.run()), asyncio.create_task(other())]
    await reflector.synced.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(taken) == 400
    assert max(b - a for a, b in itertools.pairwise(turns)) <= ITEMS_AT_ONCE


async def test_resumes_a_broken_watch_without_listing(api: FakeKube, clock: FakeClock) -> None:
    lists: list[str] = []
    api.cluster.before = lambda verb, *_: lists.append(verb) if verb == "list" else None
    async with watching(api, clock) as watcher:
        api.cluster.break_watches(TransientError("connection reset"))
        await api.create(pod("missed"), PODS)
        await clock.advance(10)
        assert watcher.names() == {"missed": "Running"}
        assert lists == ["list"]


async def test_lists_again_when_history_is_gone_and_reports_what_vanished(api: FakeKube, clock: FakeClock) -> None:
    await api.create(pod("gone"), PODS)
    async with watching(api, clock) as watcher:
        api.cluster.break_watches(TransientError("connection reset"))
        await settle()
        await api.delete(PODS, "n", "gone")
        await api.create(pod("here"), PODS)
        api.cluster.compact()
        await clock.advance(10)
        assert watcher.names() == {"here": "Running"}
        assert [(c.key[1], c.old, c.new) for c in watcher.changes[1:]] == [
            ("gone", "Running", None),
            ("here", None, "Running"),
        ]


def refusing(counts: dict[str, int], verb: str) -> Callable[[str, str, str], None]:
    def before(asked: str, _plural: str, _name: str) -> None:
        if asked == verb:
            counts[verb] = counts.get(verb, 0) + 1
            raise ForbiddenError("pods is forbidden", status=403)

    return before


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_failures_are_repeated_for_ever_but_ever_more_slowly(api: FakeKube, clock: FakeClock, verb: str) -> None:
    counts: dict[str, int] = {}
    api.cluster.before = refusing(counts, verb)
    async with watching(api, clock) as watcher:
        await clock.advance(3600)
        assert 3600 / 30 - 5 < counts[verb] < 3600 / 15 + 10
        assert watcher.reflector.synced.is_set() == (verb == "watch")
        api.cluster.before = lambda *_: None
        await api.create(pod("late"), PODS)
        await clock.advance(31)
        assert watcher.names() == {"late": "Running"}


async def test_age_tells_how_long_nothing_was_heard(api: FakeKube, clock: FakeClock) -> None:
    async with watching(api, clock) as watcher:
        await clock.advance(100)
        assert watcher.reflector.age() == pytest.approx(100)
        await api.create(pod("p"), PODS)
        await settle()
        assert watcher.reflector.age() == pytest.approx(0)
