"""Nodes that are drained and engines that are evicted: what an engine holds goes on serving until another has it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from duplex_lab.cluster import Cluster
from harness.crowd import Crowd
from harness.installation import SYSTEM_NAMESPACE
from harness.serving import Serving

from .conftest import READY_SECONDS, TWO_PAIRS, Apply, MakeTalker

ENGINES = "duplex.dev/role in (prefill,decode)"
DRAIN_SECONDS = 60
OPERATOR = "deployment/duplex-operator"


def engines_on(serving: Serving, node: str) -> list[str]:
    """Return the engine pods on a node, those on their way out included."""
    found = [pod for role in ("prefill", "decode") for pod in serving.list("pods", role=role)]
    return [pod["metadata"]["name"] for pod in found if pod["spec"].get("nodeName") == node]


@pytest.fixture
def drainable(cluster: Cluster) -> Iterator[str]:
    """Give a node that may be drained, and let it take pods again afterwards."""
    names = cluster.kubectl("get", "nodes", "-o", "name").stdout.split()
    if len(names) < 2:
        pytest.fail("this scenario drains a node and needs a second one: give the cluster two")
    name = names[-1].removeprefix("node/")
    yield name
    cluster.kubectl("uncordon", name)


def test_a_drained_node_takes_no_kv_along(
    cluster: Cluster, apply_serving: Apply, talker: MakeTalker, crowd: Crowd, drainable: str
) -> None:
    """`kubectl drain` waits until the operator has replaced and emptied the engines there: no turn starts anew."""
    budget = {"podDisruptionBudget": {"enabled": True}, "decode": {"drainSeconds": DRAIN_SECONDS}}
    serving = apply_serving(TWO_PAIRS)
    serving.patch(budget)
    talks = talker(serving)
    if not engines_on(serving, drainable):
        pytest.fail(f"no engine came to {drainable}: there is nothing to drain")
    talks.begin(crowd)
    which = f"--pod-selector=duplex.dev/serving={serving.name},{ENGINES}"
    cluster.kubectl("drain", drainable, which, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
    assert engines_on(serving, drainable) == []
    turns = talks.end(crowd)
    started_anew = [turn for turn in turns if turn.turn > 1 and not turn.pulled_tokens]
    assert started_anew == []
    serving.wait_ready(seconds=READY_SECONDS)
    assert {role: len(serving.staying(role)) for role in ("prefill", "decode")} == {"prefill": 2, "decode": 2}


@pytest.fixture
def no_operator(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """Give a function that takes the operator away, and bring it back afterwards."""

    def scale(replicas: int) -> None:
        cluster.kubectl("-n", SYSTEM_NAMESPACE, "scale", OPERATOR, f"--replicas={replicas}")
        cluster.kubectl("-n", SYSTEM_NAMESPACE, "rollout", "status", OPERATOR, "--timeout=120s")

    shown = cluster.kubectl("-n", SYSTEM_NAMESPACE, "get", OPERATOR, "-o", "json").stdout
    replicas = int(json.loads(shown)["spec"]["replicas"])
    yield lambda: scale(0)
    scale(replicas)


def test_an_eviction_that_nobody_announced_waits_for_what_is_held(
    cluster: Cluster, apply_serving: Apply, talker: MakeTalker, crowd: Crowd, no_operator: Callable[[], None]
) -> None:
    """With the operator away a decode engine is evicted: its preStop hook keeps it until its holds are pulled."""
    serving = apply_serving({"spec": {"decode": {"replicas": 2, "drainSeconds": DRAIN_SECONDS}}})
    talks = talker(serving)
    no_operator()
    talks.begin(crowd)
    leaving = min(serving.staying("decode"))
    eviction: dict[str, Any] = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": leaving, "namespace": serving.namespace},
    }
    path = f"/api/v1/namespaces/{serving.namespace}/pods/{leaving}/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    began = time.monotonic()

    def gone() -> bool | None:
        return True if leaving not in {pod["metadata"]["name"] for pod in serving.list("pods", role="decode")} else None

    serving.wait(gone, seconds=DRAIN_SECONDS + 30, what=f"end of {leaving}")
    assert time.monotonic() - began < DRAIN_SECONDS, "it left when nothing was held, not when its time was over"
    turns = talks.end(crowd)
    started_anew = [turn for turn in turns if turn.turn > 1 and not turn.pulled_tokens]
    assert started_anew == []
