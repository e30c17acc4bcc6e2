"""Rollouts and removals through the whole reconcile: interrupted anywhere they go on, and nobody is cut off."""

import asyncio
import copy
from itertools import count
from typing import Any

import pytest

from duplex_connector.contract import Annotation
from duplex_kube.api import NODES
from duplex_kube.errors import ConflictError, TransientError
from duplex_operator.plan import Scale
from duplex_operator.plan.decide import STEADY_SECONDS
from duplex_operator.reconcile.kinds import BY_KIND
from operator_tests.fake_clock import FakeClock
from operator_tests.fake_kube import Cluster

from .inner import KEY, Inner, an_operator, content, put, the_serving
from .site import Site
from .test_reconciler import _without_owner as told
from .test_reconciler import condition, failing_at

TWO = {
    "prefill": {"instanceType": "cpu", "replicas": 2},
    "decode": {"instanceType": "cpu", "replicas": 2, "drainSeconds": 600},
}
CHANGED: dict[str, Any] = {"engine": {"image": "engine:0.32.0"}}
NO_SPARE: dict[str, Any] = {"rollout": {"maxSurge": 0}}
ROUNDS = 40


async def settle(inner: Inner, site: Site, rounds: int = ROUNDS) -> None:
    """Reconcile until it is finished, with the cluster at work in between; someone always can be served meanwhile."""
    served = site.takes_conversations()
    for _ in range(rounds):
        inner.clock.jump(20)
        inner.stats = site.stats()
        before = set(site.applied.get("draining", ()))
        after = await inner.reconcile()
        gone = len(site.deleted)
        site.act()
        for pod in site.deleted[gone:]:
            name = pod["metadata"]["name"]
            assert name in before or pod["metadata"]["labels"]["duplex.dev/role"] == "router", f"{name} was not drained"
        assert site.takes_conversations() or not served
        served = site.takes_conversations()
        if after == STEADY_SECONDS and condition(site._cluster, "Reconciling") == ("", "", ""):
            return
    raise AssertionError("no rest")


async def begun(clock: FakeClock, *, cluster: Cluster | None = None, **spec: Any) -> tuple[Cluster, Site]:
    """Give a cluster in which two pairs serve."""
    cluster = cluster or Cluster()
    site = Site(cluster)
    await put(cluster, the_serving(**TWO | spec))
    async with an_operator(cluster, clock) as inner:
        await settle(inner, site)
    return cluster, site


EVERY, SOME = 1, 7


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("bounds", "error", "stride"),
    [
        ({}, TransientError("down"), EVERY),
        ({}, asyncio.CancelledError(), SOME),
        (NO_SPARE, ConflictError("409"), SOME),
        (NO_SPARE, asyncio.CancelledError(), SOME),
    ],
    ids=["down", "killed", "conflict-no-spare", "killed-no-spare"],
)
async def test_a_rollout_interrupted_at_any_request_goes_on_and_ends_the_same(
    bounds: dict[str, Any], error: BaseException, stride: int
) -> None:
    clock = FakeClock()
    start, site = await begun(clock)
    await put(start, the_serving(**TWO, **CHANGED, **bounds))
    assert await ends_the_same(clock, start, site, error, stride) > 40


async def ends_the_same(clock: FakeClock, start: Cluster, at_start: Site, error: BaseException, stride: int) -> int:
    """Interrupt the operator at each request, or some, on copies of a cluster; return how many requests there are.

    The next operator must end in what an undisturbed one comes to.
    """
    undisturbed, site = copied(start, at_start)
    requests = [0]
    undisturbed.before = lambda verb, *_: requests.__setitem__(0, requests[0] + (verb not in {"list", "watch"}))
    async with an_operator(undisturbed, clock, term=2) as inner:
        await settle(inner, site)
    expected = told(content_of(undisturbed))
    interrupted = 0
    for fail_at in range(1, requests[0] + 1, stride):
        cluster, site = copied(start, at_start)
        cluster.before = failing_at(fail_at, error)
        async with an_operator(cluster, clock, term=2) as inner:
            try:
                await settle(inner, site)
            except type(error):
                interrupted += 1
        cluster.before = lambda *_: None
        async with an_operator(cluster, clock, term=3) as inner:
            await settle(inner, site)
        assert told(content_of(cluster)) == expected
        assert not [pod for pod in site.pods() if Annotation.DRAINING in pod["metadata"]["annotations"]]
    assert interrupted >= requests[0] // stride // 2
    return requests[0]


INTERRUPTIONS = pytest.mark.parametrize(
    ("error", "stride"),
    [(TransientError("down"), 1), (asyncio.CancelledError(), 1), (ConflictError("409"), 3)],
    ids=["down", "killed", "conflict"],
)


@pytest.mark.timeout(600)
@INTERRUPTIONS
async def test_a_scale_down_interrupted_at_any_request_goes_on_and_ends_the_same(
    error: BaseException, stride: int
) -> None:
    clock = FakeClock()
    start, site = await begun(clock)
    one = {role: TWO[role] | {"replicas": 1} for role in TWO}
    await put(start, the_serving(**one))
    assert await ends_the_same(clock, start, site, error, stride) > 10


@pytest.mark.timeout(600)
@INTERRUPTIONS
async def test_an_evacuation_interrupted_at_any_request_goes_on_and_ends_the_same(
    error: BaseException, stride: int
) -> None:
    clock = FakeClock()
    start = Cluster()
    for name in ("n-1", "n-2"):
        start.put(NODES, {"metadata": {"name": name, "uid": name}, "spec": {}}, "ADDED")
    start, site = await begun(clock, cluster=start)
    assert {pod["spec"]["nodeName"] for pod in engines_of(site)} == {"n-1", "n-2"}
    start.put(NODES, {"metadata": {"name": "n-1", "uid": "n-1"}, "spec": {"unschedulable": True}}, "MODIFIED")
    assert await ends_the_same(clock, start, site, error, stride) > 10
    async with an_operator(start, clock, term=2) as inner:
        await settle(inner, site)
    assert {pod["spec"]["nodeName"] for pod in engines_of(site)} == {"n-2"}
    assert len(engines_of(site)) == 4


def engines_of(site: Site) -> list[dict[str, Any]]:
    return [pod for pod in site.pods() if pod["metadata"]["labels"]["duplex.dev/role"] != "router"]


def copied(cluster: Cluster, site: Site) -> tuple[Cluster, Site]:
    """Return another cluster in the same state."""
    other = Cluster()
    other.objects, other.applied = copy.deepcopy(cluster.objects), copy.deepcopy(cluster.applied)
    other.version = other.compacted = cluster.version
    other.versions = count(cluster.version + 1)
    return other, site.copied(other)


def content_of(cluster: Cluster) -> dict[Any, Any]:
    """Return the children without their pods, whose names count how often they were made."""
    return {key: value for key, value in content(cluster).items() if key[0] != "pods"}


async def test_a_scale_down_takes_the_engine_that_holds_least_and_waits_for_what_it_holds() -> None:
    clock = FakeClock()
    cluster, site = await begun(clock)
    decode = [pod["metadata"]["name"] for pod in site.pods() if "-decode-" in pod["metadata"]["name"]]
    site.held = {decode[0]: 500, decode[1]: 400}
    smaller = {**TWO, "decode": TWO["decode"] | {"replicas": 1}}
    await put(cluster, the_serving(**smaller))
    async with an_operator(cluster, clock, term=2) as inner:
        for _ in range(6):
            clock.jump(20)
            inner.stats = site.stats()
            await inner.reconcile()
            site.act()
        assert site.applied["draining"] == [decode[1]]
        assert f"{decode[1]} (0 legs, 400 tokens held)" in condition(cluster, "Progressing")[2]
        assert cluster.objects["disaggregatedservings", "n", "chat"]["status"]["decode"]["draining"] == 1
        site.held = {decode[0]: 500}
        await settle(inner, site)
    left = [pod["metadata"]["name"] for pod in site.pods() if "-decode-" in pod["metadata"]["name"]]
    assert left == [decode[0]]
    assert site.applied["draining"] == []


def scaled(cluster: Cluster, role: str, replicas: int) -> None:
    """Write a ServingRole's number as an autoscaler does, through its scale."""
    role_object = copy.deepcopy(cluster.objects["servingroles", "n", f"chat-{role}"])
    role_object["spec"] = {"replicas": replicas}
    cluster.put(BY_KIND["ServingRole"], role_object, "MODIFIED")


async def test_an_autoscaler_is_followed_up_and_down_and_never_written_over() -> None:
    clock = FakeClock()
    external = {"mode": "External", "maxReplicas": 8}
    spec = {"decode": TWO["decode"] | {"scaling": external}}
    cluster, site = await begun(clock, **spec)
    assert cluster.objects["servingroles", "n", "chat-decode"]["spec"] == {"replicas": 2}, "what it begins with"
    scaled(cluster, "decode", 4)
    async with an_operator(cluster, clock, term=2) as inner:
        await settle(inner, site)
        assert len([pod for pod in site.pods() if "-decode-" in pod["metadata"]["name"]]) == 4
        scaled(cluster, "decode", 1)
        await settle(inner, site)  # which sees to it that what goes was drained
    assert len([pod for pod in site.pods() if "-decode-" in pod["metadata"]["name"]]) == 1
    role = cluster.objects["servingroles", "n", "chat-decode"]
    assert role["spec"] == {"replicas": 1}
    assert {key: role["status"][key] for key in ("replicas", "ready", "wanted")} == dict.fromkeys(
        ("replicas", "ready", "wanted"), 1
    )
    await put(cluster, the_serving(**TWO))
    async with an_operator(cluster, clock, term=3) as inner:
        await settle(inner, site)
    assert cluster.objects["servingroles", "n", "chat-decode"]["spec"] == {"replicas": 2}, "Fixed: the serving rules"


async def test_a_number_to_begin_with_does_not_overtake_an_autoscaler() -> None:
    clock, cluster = FakeClock(), Cluster()
    external = {"mode": "External", "maxReplicas": 8}
    await put(cluster, the_serving(decode=TWO["decode"] | {"scaling": external}))
    async with an_operator(cluster, clock) as inner:
        await inner.reconcile()
        await inner.look()
        # Written after the operator's last look at it.
        before = inner.children.of(KEY)["ServingRole", "chat-decode"]
        scaled(cluster, "decode", 5)
        serving = cluster.objects["disaggregatedservings", "n", "chat"]
        number = Scale("chat-decode", before.uid, 2, before.obj["metadata"]["resourceVersion"], {})
        await inner.writer.scale(serving, number, inner.children.of(KEY))
    assert cluster.objects["servingroles", "n", "chat-decode"]["spec"] == {"replicas": 5}


async def test_suspend_lets_routers_go_before_engines() -> None:
    clock = FakeClock()
    cluster, site = await begun(clock)
    await put(cluster, the_serving(**TWO, suspend=True))
    async with an_operator(cluster, clock, term=2) as inner:
        inner.stats = site.stats()
        await inner.reconcile()
        sizes = {obj["metadata"]["name"]: obj["spec"]["replicas"] for obj in deployments(cluster)}
        assert sizes.pop("chat-router") == 0
        assert set(sizes.values()) == {2}
        site.act()
        for _ in range(5):
            clock.jump(20)
            await inner.reconcile()
            site.act()
    assert site.pods() == []
    assert condition(cluster, "Ready")[:2] == ("False", "Suspended")
    assert condition(cluster, "Reconciling")[0] == ""


def deployments(cluster: Cluster) -> list[dict[str, Any]]:
    return [obj for (plural, _, _), obj in cluster.objects.items() if plural == "deployments"]


async def test_what_a_node_has_left_of_an_engine_stands_in_nobodys_way() -> None:
    cluster, clock = Cluster(), FakeClock()
    for number in (1, 2):
        cluster.put(NODES, {"metadata": {"name": f"n-{number}", "uid": f"n-{number}"}}, "ADDED")
    cluster, site = await begun(clock, cluster=cluster)
    engine = next(pod for pod in site.pods() if pod["metadata"]["labels"].get("duplex.dev/role") == "decode")
    site.end_by_node(engine)
    site.act()
    node = next(obj for key, obj in cluster.objects.items() if key == ("nodes", "", engine["spec"]["nodeName"]))
    cluster.put(NODES, copy.deepcopy(node) | {"spec": {"unschedulable": True}}, "MODIFIED")
    async with an_operator(cluster, clock) as inner:
        await settle(inner, site)
        await put(cluster, the_serving(**TWO | {"decode": {"instanceType": "cpu", "replicas": 3}}))
        await settle(inner, site)
        role = {"duplex.dev/role": "decode"}.items()
        assert sum(role <= pod["metadata"]["labels"].items() for pod in site.pods()) == 3
        assert cluster.objects["disaggregatedservings", "n", "chat"]["status"]["decode"]["draining"] == 0
