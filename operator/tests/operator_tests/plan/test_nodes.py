"""What nodes do to engines, and what the status says of it: cordoned ones, those that end pods, and dead ones."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from duplex_connector.contract import Role
from duplex_operator.api import Reason
from duplex_operator.plan import Plan, Pod, plan
from duplex_operator.plan.observed import Trouble

from .build import engines, router_pod, serving, serving_well, wanted
from .test_decide import NOW, condition, settled


def engine_sizes(decided: Plan, revision: str) -> list[int]:
    """Return what is applied as the sizes of a revision's Deployments."""
    works = [obj for obj in decided.apply if obj["kind"] == "Deployment"]
    return [obj["spec"]["replicas"] for obj in works if obj["metadata"]["name"].endswith(revision)]


def test_engines_leave_a_cordoned_node_and_the_status_says_what_they_wait_for() -> None:
    target = wanted()
    old = Pod("d-0", "decode", target.revision, "10.0.0.2", ready=True, terminating=False, trouble=None, node="n-1")
    observed = serving_well(target.revision)
    pods = (*observed.pods, old, replace(old, name="p-0", role="prefill"))
    assert condition(plan(target, replace(observed, pods=pods), NOW), "Reconciling") == ("", "", "")
    cordoned = tuple(replace(pod, cordoned=pod.node == "n-1") for pod in pods)
    decided = plan(target, replace(observed, pods=cordoned, sees_nodes=True), NOW)
    sizes = [obj["spec"]["replicas"] for obj in decided.apply if obj["kind"] == "Deployment"]
    assert sizes == [1, 2, 2], "the router's, and one more of each role"
    status, _, message = condition(decided, "Reconciling")
    assert status == "True", "the next look must not be long in coming"
    assert message.startswith("engines wait for replacements before their nodes go: p-0 (on n-1), d-0 (on n-1); others")
    assert decided.requeue_after == 3.0
    suspended = wanted(serving(suspend=True))
    stays = plan(suspended, replace(observed, pods=cordoned, sees_nodes=True), NOW)
    assert max(obj["spec"]["replicas"] for obj in stays.apply if obj["kind"] == "Deployment") == 1


def without_replacement(*more: Pod, since: int = 0, **spec: Any) -> Plan:
    """Decide for an engine on a cordoned node, with what there is besides."""
    target = wanted(serving(**spec))
    leaving = Pod("d-0", "decode", target.revision, "", ready=True, terminating=False, trouble=None, node="n-1")
    pods = (
        *serving_well("").pods,
        replace(leaving, cordoned=True),
        *(replace(p, revision=target.revision) for p in more),
    )
    observed = serving_well(target.revision, pods=pods, sees_nodes=True)
    first = plan(target, observed, NOW)
    return plan(target, replace(observed, status=first.status), NOW + timedelta(seconds=since))


def test_an_engine_that_waits_for_a_replacement_that_cannot_come_says_so_and_what_to_do() -> None:
    pending = Trouble(Reason.INSUFFICIENT_CAPACITY, "no node takes it: 0/3 nodes are available; add nodes")
    other = Pod("d-1", "decode", "", "", ready=False, terminating=False, trouble=pending)
    for seconds in (0, 3600):
        decided = without_replacement(other, since=seconds)
        status, reason, message = condition(decided, "Progressing")
        assert (status, reason) == ("False", "InsufficientCapacity")
        assert message.startswith("engines wait for replacements before their nodes go: d-0 (on n-1); pod d-1: no node")
        assert "raise rollout.maxUnavailable" in message
        assert "former spec" not in message
        assert condition(decided, "Stalled")[0] == ("True" if seconds else "")
        assert condition(decided, "Ready")[0] == "True"
    loading = replace(other, trouble=Trouble(Reason.MODEL_LOADING, "the engine loads its model"))
    assert condition(without_replacement(loading), "Progressing")[:2] == ("True", "Progressing")
    late = condition(without_replacement(loading, since=3600), "Progressing")
    assert late[:2] == ("False", "ProgressDeadlineExceeded")
    assert "loads its model; to let them go before" in late[2]


def test_why_nodes_end_pods_is_told_while_no_other_pod_says_why() -> None:
    target = wanted()
    ended = Pod(
        "d-9",
        "decode",
        target.revision,
        "",
        ready=False,
        terminating=False,
        trouble=Trouble(Reason.PODS_NOT_READY, "E"),
    )
    few = tuple(engines(target.revision, ready=0))
    found = condition(settled(workloads=few, ended=(ended,)), "DecodeReady")
    assert found == ("False", "PodsNotReady", "0 of 1 decode pods are ready; pod d-9: E")
    starting = replace(ended, name="d-1", trouble=Trouble(Reason.MODEL_LOADING, "the engine loads its model"))
    pods = (*serving_well("").pods, starting)
    assert condition(settled(workloads=few, ended=(ended,), pods=pods), "DecodeReady")[1] == "ModelLoading"


def test_what_a_dead_node_keeps_holds_up_neither_a_rollout_nor_a_suspend() -> None:
    target = wanted()
    gone = replace(router_pod("r-9"), terminating=True, ready=False, node="n-9", due="2025-12-31T23:59:00Z")
    pods = (*serving_well("").pods, *(replace(gone, name=f"{role}-9", role=role, revision="old") for role in Role))
    works = (*engines("old"), *engines(target.revision, ready=0, replicas=0))
    for seconds, size in ((0, 0), (61, 1)):
        now = NOW + timedelta(seconds=seconds)
        decided = plan(target, serving_well("old", workloads=works, pods=pods), now)
        assert engine_sizes(decided, target.revision) == [size, size]
        assert ("dead nodes: prefill-9 (on n-9)" in condition(decided, "Progressing")[2]) == bool(size)
        suspended = wanted(serving(suspend=True))
        rests = plan(suspended, serving_well(target.revision, pods=(gone,)), now)
        assert engine_sizes(rests, target.revision) == [1 - size, 1 - size]
