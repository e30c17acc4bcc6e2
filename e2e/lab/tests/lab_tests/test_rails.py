"""What the lab adds to its nodes: NetworkPolicies in force, devices that are counted and given out, pairs cut apart."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duplex_connector.contract import PREFLIGHT_PASSED
from duplex_lab import faults
from duplex_lab.base_images import host_image
from duplex_lab.local_cluster import LocalCluster
from duplex_lab.node import HOST_RUNTIME
from duplex_lab.pretended import pretend
from duplex_lab.progress import Progress
from duplex_operator.api import Reason
from duplex_operator.plan import Pod, pod_of
from duplex_operator.plan.observed import Trouble

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[4]
IMAGE = "duplex.local/probe:1"
PYTHON = sys._base_executable  # type: ignore[attr-defined]
NOTICE_SECONDS = 180.0
NONE = Trouble(Reason.UNKNOWN, "")


@pytest.fixture(scope="module")
def lab() -> Iterator[LocalCluster]:
    found = LocalCluster("selftest-rails", Progress())
    found.down()  # a run that was cut off leaves its lab behind
    try:
        found.up()
        image = host_image(IMAGE)
        found.node("node1").import_image(image.archive, image.reference)
        yield found
    finally:
        found.down()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + NOTICE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def a_pod(name: str, *, role: str = "", **changes: Any) -> dict[str, Any]:
    """Make a pod that listens on port 8000 and has a Python."""
    container = {"name": "main", "image": IMAGE, "command": [PYTHON, "-m", "http.server", "8000"]}
    spec = {
        "runtimeClassName": HOST_RUNTIME,
        "terminationGracePeriodSeconds": 0,
        "containers": [container | changes.pop("container", {})],
    }
    metadata = {"name": name, "labels": {"role": role}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec | changes}


def apply(lab: LocalCluster, obj: dict[str, Any]) -> None:
    lab.kubectl("apply", "-f", "-", input=json.dumps(obj))


def started(lab: LocalCluster, *pods: dict[str, Any]) -> list[str]:
    """Start pods and return their addresses."""
    for pod in pods:
        apply(lab, pod)
    names = [f"pod/{pod['metadata']['name']}" for pod in pods]
    lab.kubectl("wait", "--for=condition=Ready", *names, f"--timeout={NOTICE_SECONDS:.0f}s")
    return [lab.kubectl("get", name, "-o", "jsonpath={.status.podIP}").stdout for name in names]


def reaches(lab: LocalCluster, pod: str, address: str) -> bool:
    program = f"import socket; socket.create_connection(({address!r}, 8000), 3)"
    return lab.kubectl("exec", pod, "--", PYTHON, "-c", program, check=False).returncode == 0


def test_a_policy_lets_in_whom_it_names_and_nobody_else(lab: LocalCluster) -> None:
    """And a pair that is cut apart reaches all others."""
    pods = [a_pod("engine", role="decode"), a_pod("router", role="router"), a_pod("stranger")]
    engine, router, _ = started(lab, *pods)
    assert eventually(lambda: reaches(lab, "stranger", engine) and reaches(lab, "router", engine))
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "engines"},
        "spec": {
            "podSelector": {"matchLabels": {"role": "decode"}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"podSelector": {"matchLabels": {"role": "router"}}}],
                    "ports": [{"protocol": "TCP", "port": 8000}],
                }
            ],
        },
    }
    apply(lab, policy)
    assert eventually(lambda: not reaches(lab, "stranger", engine))
    assert reaches(lab, "router", engine)
    assert reaches(lab, "stranger", router), "no policy is about it"
    assert lab.run_in_network(["curl", "-sf", "-m", "5", f"http://{engine}:8000/"], capture_output=True).returncode == 0
    lab.kubectl("delete", "networkpolicy", "engines")
    assert eventually(lambda: reaches(lab, "stranger", engine))
    faults.cut_pair(lab, f"{router},{engine}")
    assert not reaches(lab, "router", engine)
    assert reaches(lab, "stranger", engine)
    faults.heal(lab)
    assert reaches(lab, "router", engine)


def image_with_fabric(folder: Path) -> Path:
    """Make what an image with EFA has and this machine has not: fi_info, vLLM and NIXL, as far as preflight looks."""
    for name in ("vllm-0.33.0", "nixl-1.5.0"):
        info = folder / f"{name}.dist-info"
        info.mkdir(parents=True)
        package, _, version = name.partition("-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (folder / "nixl").mkdir()
    (folder / "nixl/__init__.py").touch()
    (folder / "nixl/_api.py").write_text("nixl_agent = nixl_agent_config = lambda *_, **__: None\n")
    tool = folder / "fi_info"
    # libfabric shows the devices that the container has.
    tool.write_text('#!/bin/sh\nfor each in /dev/infiniband/uverbs*; do echo "domain: rdmap-$(basename $each)"; done\n')
    tool.chmod(0o755)
    return folder


def on_gpus(name: str, image: Path, *, asked: int, expected: int) -> dict[str, Any]:
    """Make a pod with GPUs and two EFA interfaces for each, and the real preflight before it."""
    devices = {"nvidia.com/gpu": asked, "vpc.amazonaws.com/efa": 2 * asked}
    given = {
        "resources": {"limits": devices},
        "securityContext": {"runAsUser": 0, "capabilities": {"add": ["IPC_LOCK"]}},
    }
    words = ["--accelerator=nvidia", f"--devices={expected}", f"--efa={2 * expected}", "--backend=LIBFABRIC"]
    preflight = {
        "name": "preflight",
        "image": IMAGE,
        "command": [PYTHON, "-m", "duplex_connector.preflight", *words, "--version=0.33.0", "--model=tiny"],
        "env": [
            {"name": "PYTHONPATH", "value": "/connector:/image"},
            {"name": "PATH", "value": "/image:/usr/local/bin:/usr/bin:/bin"},
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": part, "mountPath": f"/{part}", "readOnly": True} for part in ("connector", "image")],
        **given,
    }
    volumes = [
        {"name": "connector", "hostPath": {"path": str(ROOT / "connector/src")}},
        {"name": "image", "hostPath": {"path": str(image)}},
    ]
    selector = {"node.kubernetes.io/instance-type": "p5en.48xlarge"}
    return a_pod(name, container=given, initContainers=[preflight], volumes=volumes, nodeSelector=selector)


def seen(lab: LocalCluster, name: str) -> Pod:
    """Return the pod as the operator reads it."""
    return pod_of(json.loads(lab.kubectl("get", "pod", name, "-o", "json").stdout))


def test_devices_are_given_out_counted_by_preflight_and_exhausted(lab: LocalCluster, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    image = image_with_fabric(tmp_path / "image")
    pretend(lab, "node1", "p5en.48xlarge", {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 16})
    started(lab, on_gpus("half", image, asked=4, expected=4), on_gpus("quarter", image, asked=2, expected=2))
    found = {}
    for name, count in (("half", 4), ("quarter", 2)):
        assert seen(lab, name).preflight == PREFLIGHT_PASSED
        listing = lab.kubectl(
            "exec", name, "--", "sh", "-c", "ls -d /dev/nvidia* /dev/infiniband/uverbs*"
        ).stdout.split()
        assert len([each for each in listing if "uverbs" in each]) == 2 * count
        assert len(listing) == 3 * count
        found[name] = set(listing)
    assert not found["half"] & found["quarter"]

    apply(lab, on_gpus("lying", image, asked=2, expected=4))
    assert eventually(lambda: (seen(lab, "lying").trouble or NONE).reason is Reason.PREFLIGHT_FAILED)
    trouble = seen(lab, "lying").trouble
    assert trouble is not None
    assert "2 of 4 devices of nvidia.com/gpu are in the pod" in trouble.message
    assert "4 of 8 EFA devices are in the pod" in trouble.message

    apply(lab, on_gpus("beyond", image, asked=2, expected=2))
    assert eventually(lambda: (seen(lab, "beyond").trouble or NONE).reason is Reason.INSUFFICIENT_CAPACITY)
    trouble = seen(lab, "beyond").trouble
    assert trouble is not None
    assert "Insufficient nvidia.com/gpu" in trouble.message
    lab.kubectl("delete", "pod", "lying")
    started(lab, on_gpus("beyond", image, asked=2, expected=2))
