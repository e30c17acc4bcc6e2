"""Nodes that are about to go: told apart, and told to the servings whose pods they run."""

import asyncio
import copy
from typing import Any

import pytest

from duplex_kube.api import NODES, PODS
from duplex_operator.reconcile.children import Children
from duplex_operator.reconcile.nodes import NodeState, state_of
from operator_tests.fake_clock import FakeClock, settle
from operator_tests.fake_kube import Cluster, FakeKube


def node(
    name: str = "n-1", taints: tuple[str, ...] = (), *, unschedulable: bool = False, **more: Any
) -> dict[str, Any]:
    spec: dict[str, Any] = {"taints": [{"key": taint, "effect": "NoSchedule"} for taint in taints]} if taints else {}
    return {
        "metadata": {"name": name, "uid": name, **more},
        "spec": spec | ({"unschedulable": True} if unschedulable else {}),
    }


@pytest.mark.parametrize(
    ("obj", "state"),
    [
        (node(), NodeState.STAYS),
        ({"metadata": {"name": "n"}}, NodeState.STAYS),
        (node(taints=("nvidia.com/gpu", "node.kubernetes.io/not-ready")), NodeState.STAYS),
        (node(unschedulable=True), NodeState.LEAVES),
        (node(deletionTimestamp="2026-01-01T00:00:00Z"), NodeState.LEAVES),
        (node(taints=("karpenter.sh/disrupted",)), NodeState.LEAVES),
        (node(taints=("ToBeDeletedByClusterAutoscaler",)), NodeState.LEAVES),
        (node(taints=("aws-node-termination-handler/rebalance-recommendation",)), NodeState.LEAVES),
        (node(taints=("aws-node-termination-handler/spot-itn",), unschedulable=True), NodeState.ENDS),
        (node(taints=("node.kubernetes.io/out-of-service",)), NodeState.ENDS),
    ],
)
def test_what_a_node_is_up_to(obj: dict[str, Any], state: NodeState) -> None:
    assert state_of(obj) is state


async def test_a_cordon_is_work_for_the_servings_on_the_node_and_for_no_others() -> None:
    cluster, told = Cluster(), []
    for number in (1, 2):
        cluster.put(NODES, node(f"n-{number}"), "ADDED")
        labels = {"duplex.dev/serving": f"s-{number}", "duplex.dev/role": "decode"}
        metadata = {"name": f"d-{number}", "namespace": "n", "uid": f"u-{number}", "labels": labels}
        cluster.put(PODS, {"metadata": metadata, "spec": {"nodeName": f"n-{number}"}}, "ADDED")
    children = Children(FakeKube(cluster), ["n"], FakeClock(), told.append, nodes=True)
    tasks = [asyncio.create_task(reflector.run()) for reflector in children.reflectors]
    try:
        await children.synced()
        told.clear()
        beat = copy.deepcopy(node("n-1")) | {"status": {"conditions": []}}
        for obj, cordoned in ((beat, False), (node("n-1", unschedulable=True), True), (node("n-1"), False)):
            cluster.put(NODES, obj, "MODIFIED")
            await settle()
            assert [pod.cordoned for pod in children.pods_of(("n", "s-1"))] == [cordoned]
            assert [pod.cordoned for pod in children.pods_of(("n", "s-2"))] == [False]
        assert told == [("n", "s-1")] * 2, "a node's heartbeat is no news"
        cluster.put(NODES, node("n-1", taints=("aws-node-termination-handler/spot-itn",)), "MODIFIED")
        await settle()
        assert [(pod.cordoned, pod.ending) for pod in children.pods_of(("n", "s-1"))] == [(True, True)]
        cluster.put(NODES, node("n-1"), "DELETED")
        await settle()
        assert [pod.cordoned for pod in children.pods_of(("n", "s-1"))] == [False]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_without_the_right_to_nodes_none_is_asked_for() -> None:
    cluster = Cluster()
    asked: list[str] = []
    cluster.before = lambda _verb, plural, _name: asked.append(plural)
    children = Children(FakeKube(cluster), ["n"], FakeClock(), lambda _key: None)
    tasks = [asyncio.create_task(reflector.run()) for reflector in children.reflectors]
    await children.synced()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert "pods" in asked
    assert "nodes" not in asked
    assert not children.sees_nodes
