"""The manifests for real instances, on a node that pretends to be one: scheduled by devices, counted, and exhausted."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from duplex_lab.cluster import Cluster
from duplex_lab.local_cluster import LocalCluster
from duplex_lab.pretended import pretend
from harness.installation import ROOT
from harness.serving import Serving, merged, read_manifest
from harness.talk import talk
from harness.tally import Tally

from .conftest import CORRUPT_MARK, INSTANT, READY_SECONDS, Talker

# What the lab's node has not: the instance's processors and memory, weights, the vendor's scheduler.
SMALL: dict[str, Any] = {
    "replicas": 1,
    "podTemplate": None,
    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
}
STARTS_ANYHOW = {"spec": {"engine": {"env": [{"name": "DUPLEX_PREFLIGHT", "value": "warn"}]}}}


def manifest(cluster: Cluster, example: str, version: str) -> dict[str, Any]:
    """Return an example with the simulator for an engine, and one pod of each role; its devices are as they are."""
    changes = {
        "model": {"source": None},
        "engine": {"image": cluster.image_reference("simulator"), "version": version},
        "prefill": copy.deepcopy(SMALL),
        "decode": copy.deepcopy(SMALL),
    }
    return merged(merged(read_manifest(ROOT / f"examples/{example}.yaml"), {"spec": changes}), INSTANT)


def devices(serving: Serving, role: str, pattern: str) -> list[list[str]]:
    """Return the devices that each pod of a role sees."""
    listing = f"ls -d {pattern} 2>/dev/null || true"
    pods = [pod["metadata"]["name"] for pod in serving.list("pods", role=role)]
    return [sorted(serving.kubectl("exec", pod, "-c", "engine", "--", "sh", "-c", listing).split()) for pod in pods]


def told(serving: Serving, kind: str, reason: str, words: str) -> dict[str, Any]:
    """Wait for a condition with a reason and words in its message."""

    def said() -> dict[str, Any] | None:
        found = serving.condition(kind)
        return found if found.get("reason") == reason and words in found["message"] else None

    return serving.wait(said, seconds=120, what=f"{kind} with {reason}: {words}")


CASES = [
    pytest.param(
        "qwen3-32b-p5en",
        "0.33.0",
        "p5en.48xlarge",
        {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 16},
        {"/dev/nvidia[0-9]*": 4, "/dev/infiniband/uverbs*": 8},
        id="p5en",
    ),
    pytest.param(
        "llama-3.3-70b-trn2",
        "0.24.0.1.1.0",
        "trn2.48xlarge",
        {"aws.amazon.com/neuron": 16, "vpc.amazonaws.com/efa": 16},
        {"/dev/neuron[0-9]*": 8, "/dev/infiniband/uverbs*": 8},
        id="trn2",
    ),
]


@pytest.mark.parametrize(("example", "version", "instance", "there", "each"), CASES)
def test_an_instances_devices_are_counted_given_out_and_exhausted(  # noqa: PLR0917 - parameters of a case
    lab: LocalCluster,
    namespace: str,
    example: str,
    version: str,
    instance: str,
    there: dict[str, int],
    each: dict[str, int],
    tally: Tally,
) -> None:
    """Half a node for each role: both fit, each with devices of its own; a third does not, and status says of what."""
    pretend(lab, "node1", instance, there)
    wanted = manifest(lab, example, version)

    strict = Serving(lab, namespace, "strict")
    strict.apply(wanted)
    # The simulator's image has neither libfabric nor vLLM; what was asked for of the node is all there.
    found = told(strict, "PrefillReady", "PreflightFailed", "the image has no fi_info")
    assert "are in the pod" not in found["message"]
    assert "no package vllm" in found["message"]
    assert "may be locked" not in found["message"]
    strict.kubectl("delete", "dsv", "strict", "--wait=true")
    strict.wait(lambda: True if not strict.list("pods") else None, seconds=120, what="end of its pods")

    serving = Serving(lab, namespace, "chat")
    serving.apply(merged(wanted, STARTS_ANYHOW))
    serving.wait_ready(seconds=READY_SECONDS)
    (turn, *_) = talk(lab, Talker(lab, serving, "", tally).script(turns=2))
    assert turn.text
    assert CORRUPT_MARK not in turn.text
    told(serving, "TransportVerified", "PreflightFailed", "the image has no fi_info")
    for pattern, count in each.items():
        (of_prefill,), (of_decode,) = devices(serving, "prefill", pattern), devices(serving, "decode", pattern)
        assert (len(of_prefill), len(of_decode)) == (count, count)
        assert not set(of_prefill) & set(of_decode)

    serving.patch({"decode": {"replicas": 2}})
    told(serving, "DecodeReady", "InsufficientCapacity", next(iter(there)))
    assert serving.condition("Ready")["status"] == "True"
