"""The parts of the reconcile one by one: servings, router statistics, workers, resync."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from duplex_kube.errors import TransientError
from duplex_operator.plan import Pod
from duplex_operator.reconcile.kinds import SERVINGS
from duplex_operator.reconcile.resync import GRACE_SECONDS, Resync
from duplex_operator.reconcile.router_stats import LONGEST_ANSWER_BYTES, HttpStatsReader, RouterStatsCache
from duplex_operator.reconcile.servings import Key, Servings
from duplex_operator.reconcile.workers import Workers
from duplex_operator.runtime.leader import LostLeadershipError
from duplex_operator.runtime.metrics import Metrics
from duplex_operator.runtime.work_queue import WorkQueue
from operator_tests.fake_clock import FakeClock, settle
from operator_tests.fake_kube import Cluster, FakeKube

KEY: Key = ("n", "chat")


def serving(version: int, *, generation: int = 1, uid: str = "u", **more: Any) -> dict[str, Any]:
    metadata = {"namespace": "n", "name": "chat", "uid": uid, "resourceVersion": str(version), "generation": generation}
    return {"metadata": metadata, **more}


def test_a_status_write_of_our_own_is_no_work_and_an_edit_is() -> None:
    servings = Servings()
    assert servings.put(serving(1))
    assert not servings.put(serving(2, status={"x": 1}))
    assert servings.put(serving(3, generation=2))
    assert servings.put(serving(4, generation=2, uid="another"))


def test_an_edit_is_waited_for_until_the_status_speaks_of_it() -> None:
    servings = Servings()
    assert not servings.edited(KEY)
    servings.put(serving(1))
    assert servings.edited(KEY)
    servings.put(serving(2, status={"observedGeneration": 1}))
    assert not servings.edited(KEY)
    servings.put(serving(3, generation=2, status={"observedGeneration": 1}))
    assert servings.edited(KEY)


def test_a_late_event_does_not_bring_an_old_state_back() -> None:
    servings = Servings()
    servings.put(serving(10, generation=2))
    assert not servings.put(serving(9, generation=1))
    kept = servings.get(KEY)
    assert kept is not None
    assert kept["metadata"]["generation"] == 2


def test_the_end_of_a_former_life_does_not_remove_the_present_one() -> None:
    servings = Servings()
    servings.put(serving(5, uid="second"))
    assert not servings.remove(serving(4, uid="first"))
    assert servings.get(KEY) is not None
    assert servings.remove(serving(6, uid="second"))
    assert servings.get(KEY) is None


def pod(name: str, *, ready: bool = True, terminating: bool = False, role: str = "router") -> Pod:
    return Pod(name, role, "", f"ip-{name}", ready=ready, terminating=terminating, trouble=None)


class Reader:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, object] = {}

    async def __call__(self, address: str) -> object:
        self.asked.append(address)
        answer = self.answers.get(address, {"turns": 1})
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_only_ready_routers_are_asked_and_not_more_often_than_needed() -> None:
    clock, reader = FakeClock(), Reader()
    cache = RouterStatsCache(reader, clock)
    pods = (pod("a"), pod("b", ready=False), pod("c", terminating=True), pod("d", role="decode"))
    assert (await cache.of(KEY, pods, oldest=3)).keys() == {"a"}
    clock.jump(2)
    await cache.of(KEY, pods, oldest=3)
    assert reader.asked == ["ip-a"]
    clock.jump(2)
    await cache.of(KEY, pods, oldest=3)
    assert reader.asked == ["ip-a", "ip-a"]


async def test_a_router_that_becomes_ready_is_asked_at_once_and_one_that_left_is_forgotten() -> None:
    clock, reader = FakeClock(), Reader()
    cache = RouterStatsCache(reader, clock)
    await cache.of(KEY, (pod("a"),), oldest=100)
    assert (await cache.of(KEY, (pod("a"), pod("b")), oldest=100)).keys() == {"a", "b"}
    assert (await cache.of(KEY, (pod("b"),), oldest=100)).keys() == {"b"}


@pytest.mark.parametrize("error", [OSError("refused"), TimeoutError(), ValueError("no JSON")])
async def test_a_router_without_an_answer_is_left_out_and_not_asked_for_every_event(error: Exception) -> None:
    clock, reader = FakeClock(), Reader()
    reader.answers["ip-a"] = error
    cache = RouterStatsCache(reader, clock)
    for _ in range(3):
        assert (await cache.of(KEY, (pod("a"), pod("b")), oldest=3)).keys() == {"b"}
    assert set(reader.asked) == {"ip-a", "ip-b"}
    assert len(reader.asked) <= 3


async def test_one_lost_answer_of_a_router_is_asked_for_again() -> None:
    reader = Reader()
    reader.answers["ip-a"] = [TimeoutError(), {"turns": 7}]
    found = await RouterStatsCache(reader, FakeClock()).of(KEY, (pod("a"),), oldest=3)
    assert found["a"].turns == 7


@pytest.fixture
async def router_answers() -> AsyncIterator[tuple[HttpStatsReader, dict[str, web.Response]]]:
    answers: dict[str, web.Response] = {}

    async def stats(_: web.Request) -> web.Response:
        return answers["next"]

    app = web.Application()
    app.router.add_get("/stats", stats)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    reader = HttpStatsReader(port=runner.addresses[0][1])
    yield reader, answers
    await reader.close()
    await runner.cleanup()


async def test_reading_over_http(router_answers: tuple[HttpStatsReader, dict[str, web.Response]]) -> None:
    reader, answers = router_answers
    answers["next"] = web.json_response({"turns": 3})
    assert await reader("127.0.0.1") == {"turns": 3}
    answers["next"] = web.Response(status=503)
    with pytest.raises(OSError, match="503"):
        await reader("127.0.0.1")
    answers["next"] = web.Response(text="no json")
    with pytest.raises(ValueError, match="Expecting value"):
        await reader("127.0.0.1")
    answers["next"] = web.Response(text="[" + "1," * LONGEST_ANSWER_BYTES + "1]")
    with pytest.raises(ValueError, match="longer"):
        await reader("127.0.0.1")


class Scripted:
    """A reconciler whose outcomes are written down."""

    def __init__(self, outcomes: list[Any]) -> None:
        self.outcomes = outcomes
        self.seen: list[Key] = []

    async def reconcile(self, key: Key) -> float | None:
        self.seen.append(key)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is None or isinstance(outcome, float)
        return outcome


async def working(outcomes: list[Any], clock: FakeClock) -> tuple[Scripted, WorkQueue[Key], asyncio.Task[None]]:
    queue: WorkQueue[Key] = WorkQueue(clock, jitter=lambda: 0.0)
    scripted = Scripted(outcomes)
    workers = Workers(queue, scripted, clock, Metrics())  # type: ignore[arg-type]
    task = asyncio.create_task(workers.run(2))
    queue.add(KEY)
    await settle()
    return scripted, queue, task


@pytest.mark.parametrize("error", [TransientError("x"), TimeoutError(), ZeroDivisionError()])
async def test_a_failure_is_put_off_and_the_workers_go_on(error: Exception) -> None:
    clock = FakeClock()
    scripted, queue, task = await working([error, error, 15.0], clock)
    assert len(scripted.seen) == 1
    await clock.advance(1.1)
    assert len(scripted.seen) == 2
    await clock.advance(2.1)
    assert len(scripted.seen) == 3
    assert queue.longest_held() == 0.0
    assert not task.done()
    task.cancel()


async def test_a_success_is_looked_at_again_when_it_said_and_a_gone_one_never() -> None:
    clock = FakeClock()
    scripted, _, task = await working([15.0, None], clock)
    await clock.advance(13)
    assert len(scripted.seen) == 1
    await clock.advance(4)
    assert len(scripted.seen) == 2
    await clock.advance(1000)
    assert len(scripted.seen) == 2
    task.cancel()


async def test_lost_leadership_ends_all_workers() -> None:
    _, _, task = await working([LostLeadershipError("gone")], FakeClock())
    with pytest.raises(LostLeadershipError):
        await task


async def compared(resync: Resync, clock: FakeClock) -> None:
    task = asyncio.create_task(resync.compare())
    await clock.advance(GRACE_SECONDS + 1)
    await task


async def test_the_resync_finds_what_the_watch_missed_mends_it_and_says_so() -> None:
    clock, api, servings = FakeClock(), FakeKube(Cluster()), Servings()
    asked: list[Key] = []
    resync = Resync(api, ["n"], servings, asked.append, clock)
    await compared(resync, clock)
    assert asked == []
    first = await api.create({"metadata": {"namespace": "n", "name": "chat"}}, SERVINGS)
    await compared(resync, clock)
    assert asked == [KEY]
    assert servings.get(KEY) == first
    assert resync.problem() is None  # once may be bad luck
    await api.delete(SERVINGS, "n", "chat")
    await compared(resync, clock)
    assert asked == [KEY, KEY]
    assert servings.get(KEY) is None
    assert resync.problem() is not None
    await compared(resync, clock)
    assert resync.problem() is None


async def test_what_the_watch_brings_within_the_grace_is_not_missed() -> None:
    clock, api, servings = FakeClock(), FakeKube(Cluster()), Servings()
    asked: list[Key] = []
    resync = Resync(api, [], servings, asked.append, clock)
    created = await api.create({"metadata": {"namespace": "n", "name": "chat"}}, SERVINGS)
    task = asyncio.create_task(resync.compare())
    await clock.advance(GRACE_SECONDS / 2)
    servings.put(created)
    await clock.advance(GRACE_SECONDS)
    await task
    assert asked == []
