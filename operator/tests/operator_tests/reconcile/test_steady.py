"""A steady serving at which nothing has changed costs no decision; whatever changes is acted on, time included."""

import copy
from typing import Any

import pytest

from duplex_connector.contract import Label
from duplex_kube.api import SERVICES
from duplex_operator.plan.decide import STEADY_SECONDS
from duplex_operator.reconcile import reconciler
from duplex_operator.reconcile.reconciler import FULL_LOOK_SECONDS, LOOKS_PER_SECOND
from operator_tests.fake_clock import FakeClock
from operator_tests.fake_kube import Cluster

from .inner import KEY, Inner, an_operator, put, the_serving
from .site import Site
from .test_rollouts import TWO, settle


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give the times at which a whole decision was made."""
    times: list[float] = []
    decide = reconciler.plan

    def told(*arguments: Any) -> Any:
        times.append(0.0)
        return decide(*arguments)

    monkeypatch.setattr(reconciler, "plan", told)
    return times


async def at_rest(inner: Inner, site: Site) -> None:
    """Bring a serving to rest, all that it has written included."""
    await settle(inner, site)
    for _ in range(3):
        inner.clock.jump(40)
        await inner.reconcile()


async def test_nothing_is_decided_while_nothing_changes(decided: list[float]) -> None:
    cluster, clock = Cluster(), FakeClock()
    site = Site(cluster)
    await put(cluster, the_serving(**TWO))
    async with an_operator(cluster, clock) as inner:
        await at_rest(inner, site)
        before = len(decided)
        for _ in range(5):
            clock.jump(40)
            assert await inner.reconcile() == STEADY_SECONDS
        assert len(decided) == before
        clock.jump(FULL_LOOK_SECONDS)
        await inner.reconcile()
        assert len(decided) == before + 1, "what depends on time alone is looked at now and then"


async def test_what_does_not_get_on_is_looked_at_later_and_later_until_something_happens() -> None:
    cluster, clock = Cluster(), FakeClock()
    site = Site(cluster)
    await put(cluster, the_serving(**TWO))
    async with an_operator(cluster, clock) as inner:
        await settle(inner, site)
        inner.stats = OSError("a router that does not answer")
        clock.jump(40)
        await inner.reconcile()
        pauses = []
        for _ in range(40):
            clock.jump(20)
            pauses.append(await inner.reconcile())
        assert pauses[:2] == [3.0, 3.0]
        assert pauses == sorted(pauses, key=lambda pause: pause or 0.0)
        assert pauses[-1] == STEADY_SECONDS
        inner.stats = {}  # it answers, and has not heard of the fleet
        clock.jump(30)
        assert await inner.reconcile() == 3.0


async def test_many_steady_servings_are_each_looked_at_more_seldom() -> None:
    cluster, clock = Cluster(), FakeClock()
    site = Site(cluster)
    await put(cluster, the_serving(**TWO))
    async with an_operator(cluster, clock) as inner:
        await at_rest(inner, site)
        for number in range(799):
            other = copy.deepcopy(the_serving(**TWO))
            other["metadata"].update(name=f"chat-{number}", uid=f"u-{number}", resourceVersion="1")
            inner.servings.put(other)
        assert await inner.reconciler.reconcile(KEY) == 800 / LOOKS_PER_SECOND


async def test_what_routers_say_anew_is_told() -> None:
    cluster, clock = Cluster(), FakeClock()
    site = Site(cluster)
    await put(cluster, the_serving(**TWO))
    async with an_operator(cluster, clock) as inner:
        await at_rest(inner, site)
        inner.stats = {**site.stats(), "reuse": {"eligible": 4, "full": 4}, "turns": 5}
        clock.jump(40)
        await inner.reconcile()
        assert cluster.objects["disaggregatedservings", "n", "chat"]["status"]["reuse"]["turns"] == 5


async def test_an_engine_that_is_evicted_is_announced() -> None:
    cluster, clock = Cluster(), FakeClock()
    site = Site(cluster)
    await put(cluster, the_serving(**TWO))
    async with an_operator(cluster, clock) as inner:
        await at_rest(inner, site)
        pod = next(pod for pod in site.pods() if pod["metadata"]["labels"][Label.ROLE] == "decode")
        site.evict(pod)
        clock.jump(40)
        await inner.reconcile()
        assert site.fleet()["draining"] == [pod["metadata"]["name"]]


async def test_an_edit_is_acted_on() -> None:
    cluster, clock = Cluster(), FakeClock()
    site = Site(cluster)
    await put(cluster, the_serving(**TWO))
    async with an_operator(cluster, clock) as inner:
        await at_rest(inner, site)
        await put(cluster, the_serving(**TWO, kvTransfer={"bidirectional": {"ttlSeconds": 77}}))
        await inner.reconcile()
        assert site.fleet()["policy"]["ttlSeconds"] == 77


async def test_what_is_deleted_by_hand_comes_back() -> None:
    cluster, clock = Cluster(), FakeClock()
    site = Site(cluster)
    await put(cluster, the_serving(**TWO))
    async with an_operator(cluster, clock) as inner:
        await at_rest(inner, site)
        await inner.api.delete(SERVICES, "n", "chat-router")
        await inner.reconcile()
        assert (SERVICES.plural, "n", "chat-router") in cluster.objects
