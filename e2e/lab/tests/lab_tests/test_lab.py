"""The lab against itself: pods run and are found by name, faults do what they say, and nothing is left behind.

Two labs stand side by side throughout, of one and of two nodes.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from duplex_lab import faults
from duplex_lab.base_images import host_image
from duplex_lab.cgroups import Cgroups
from duplex_lab.errors import LabError
from duplex_lab.local_cluster import LocalCluster
from duplex_lab.namespaces import marked_processes
from duplex_lab.node import HOST_RUNTIME
from duplex_lab.node_settings import SANDBOX_IMAGE
from duplex_lab.progress import Progress

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

PROBE_IMAGE = "duplex.local/probe:1"
NOTICE_SECONDS = 180.0


@contextmanager
def fresh_lab(name: str, nodes: int) -> Iterator[LocalCluster]:
    lab = LocalCluster(name, Progress())
    lab.down()  # a run that was cut off leaves its lab behind, with what its tests have made there
    try:
        lab.up(nodes=nodes)
        yield lab
    finally:
        lab.down()


@pytest.fixture(scope="module")
def large() -> Iterator[LocalCluster]:
    with fresh_lab("selftest-large", 2) as lab:
        yield lab


@pytest.fixture(scope="module")
def small(large: LocalCluster) -> Iterator[LocalCluster]:
    del large  # stands beside this one
    with fresh_lab("selftest-small", 1) as lab:
        yield lab


def eventually(condition: Callable[[], bool], seconds: float = NOTICE_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.3)
    return True


def start_idle(lab: LocalCluster, name: str, replicas: int) -> list[str]:
    """Start pods that do nothing, spread over the nodes, and return their addresses."""
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    selector = {"matchLabels": {"app": name}}
    pod = {
        "containers": [{"name": "idle", "image": SANDBOX_IMAGE}],
        "topologySpreadConstraints": [{**spread, "labelSelector": selector}],
    }
    spec = {
        "replicas": replicas,
        "selector": selector,
        "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
    }
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    lab.kubectl("apply", "-f", "-", input=json.dumps(deployment))
    lab.kubectl("rollout", "status", f"deployment/{name}", "--timeout=180s")
    pods = json.loads(lab.kubectl("get", "pods", "-l", f"app={name}", "-o", "json").stdout)["items"]
    return [pod["status"]["podIP"] for pod in pods]


def lookup(lab: LocalCluster, name: str) -> str:
    found = lab.run_in_network(["getent", "ahostsv4", name], capture_output=True, text=True)
    return str(found.stdout.split()[0]) if found.stdout else ""


def first_pod(lab: LocalCluster, name: str) -> dict[str, object]:
    pods = json.loads(lab.kubectl("get", "pods", "-l", f"app={name}", "-o", "json").stdout)["items"]
    found: dict[str, object] = pods[0]
    return found


def test_pods_of_two_nodes_are_found_by_their_services_name(large: LocalCluster) -> None:
    addresses = start_idle(large, "pair", 2)
    large.kubectl("create", "service", "clusterip", "pair", "--clusterip=None")
    assert len({address.split(".")[2] for address in addresses}) == 2
    assert eventually(lambda: lookup(large, "pair.default.svc.cluster.local") in addresses)


def test_each_lab_answers_for_itself_only(large: LocalCluster, small: LocalCluster) -> None:
    large.kubectl("create", "configmap", "mine")
    assert small.kubectl("get", "configmap", "mine", check=False).returncode == 1
    assert set(small.status()["nodes"]) == {"node1"}
    assert set(large.status()["nodes"]) == {"node1", "node2"}


def test_the_api_server_answers_inside_and_through_a_forward(small: LocalCluster) -> None:
    def answers() -> bool:  # not while the cluster's DNS has yet to start
        asked = ["curl", "-sk", "-m", "10", "https://kubernetes.default.svc.cluster.local/version"]
        answer = small.run_in_network(asked, capture_output=True, text=True).stdout
        return bool(answer and json.loads(answer)["major"] == "1")

    assert eventually(answers)
    kubelet = f"{small.node('node1').plan.address}:10250"
    with small.forward(kubelet) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"HTTPS server" in connection.recv(4096)


def test_up_again_changes_nothing(small: LocalCluster) -> None:
    before = {identity.pid for _, identity in marked_processes(small.folder)}
    small.up()
    assert {identity.pid for _, identity in marked_processes(small.folder)} == before


def test_containers_of_the_host_runtime_run_this_machines_python(small: LocalCluster) -> None:
    image = host_image(PROBE_IMAGE)
    small.node("node1").import_image(image.archive, image.reference)
    home = "os.path.exists(os.path.expanduser('~root/.ssh'))"
    program = f"import os, ssl, sys; print(sys.version_info[:2], os.access('/usr/bin', os.W_OK), {home})"
    container = {
        "name": "probe",
        "image": PROBE_IMAGE,
        "command": [sys._base_executable, "-c", program],  # type: ignore[attr-defined]
        "securityContext": {"runAsUser": 65532},
    }
    spec = {"runtimeClassName": HOST_RUNTIME, "restartPolicy": "Never", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}
    small.kubectl("apply", "-f", "-", input=json.dumps(pod))
    small.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/probe", "--timeout=120s")
    assert small.kubectl("logs", "probe").stdout.strip() == f"{tuple(sys.version_info[:2])} False False"


def test_a_killed_container_restarts_in_its_pod(small: LocalCluster) -> None:
    start_idle(small, "killed", 1)
    before = first_pod(small, "killed")
    name = before["metadata"]["name"]  # type: ignore[index]
    identity = before["status"]["containerStatuses"][0]["containerID"].partition("://")[2]  # type: ignore[index]
    faults.kill_pod(small, f"default/{name}/idle", signal.SIGKILL)
    tasks = small.node("node1").run(["ctr", "--namespace", "k8s.io", "tasks", "ls"]).stdout.splitlines()
    assert not any(identity in line and "RUNNING" in line for line in tasks)

    def restarted() -> bool:
        pod = first_pod(small, "killed")
        statuses = pod["status"]["containerStatuses"]  # type: ignore[index]
        return bool(pod["metadata"]["name"] == name and statuses[0]["restartCount"] == 1)  # type: ignore[index]

    assert eventually(restarted)


def answers_ping(lab: LocalCluster, address: str) -> bool:
    """Say whether a pod answers: a closed port is refused by a living network and times out in a cut one."""
    done = lab.run_in_network(["curl", "-s", "-m", "3", f"http://{address}:9/"], capture_output=True)
    return bool(done.returncode == 7)


def test_a_cut_pod_is_silent_until_healed(large: LocalCluster) -> None:
    address = start_idle(large, "cut", 2)[0]
    assert answers_ping(large, address)
    faults.cut(large, address)
    assert not answers_ping(large, address)
    faults.heal(large)
    assert answers_ping(large, address)


def test_a_frozen_container_stands_still_until_thawed(small: LocalCluster) -> None:
    start_idle(small, "frozen", 1)
    name = first_pod(small, "frozen")["metadata"]["name"]  # type: ignore[index]
    tasks = ["ctr", "--namespace", "k8s.io", "tasks", "ls"]
    faults.freeze(small, f"default/{name}")
    assert "PAUSED" in small.node("node1").run(tasks).stdout
    faults.thaw(small, f"default/{name}")
    assert "PAUSED" not in small.node("node1").run(tasks).stdout


def test_the_api_server_comes_back_with_its_objects(small: LocalCluster) -> None:
    small.kubectl("create", "configmap", "kept")
    faults.restart_apiserver(small)
    assert small.kubectl("get", "configmap", "kept").returncode == 0


@pytest.mark.parametrize("target", ["pod", "a/b/c/d", "/x"])
def test_a_target_that_cannot_be_is_refused(small: LocalCluster, target: str) -> None:
    with pytest.raises(LabError, match="NAMESPACE/POD"):
        faults.kill_pod(small, target)


def test_a_killed_node_is_noticed(large: LocalCluster) -> None:
    with pytest.raises(LabError, match="control plane"):
        faults.kill_node(large, "node1")
    faults.kill_node(large, "node2")
    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    assert eventually(lambda: large.kubectl("get", "node", "node2", "-o", ready).stdout == "Unknown")
    assert large.status()["nodes"] == {"node1": True, "node2": False}


def test_an_interrupted_start_is_cleared_by_the_next() -> None:
    name = "selftest-broken"
    program = f"from duplex_lab.local_cluster import *; LocalCluster({name!r}, Progress()).up()"
    lab = LocalCluster(name, Progress())
    process = subprocess.Popen([sys.executable, "-c", program])
    assert eventually(lambda: any(part == "node1" for part, _ in marked_processes(lab.folder)))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    try:
        assert list(marked_processes(lab.folder))
        lab.up()
        assert lab.status()["up"]
    finally:
        lab.down()
    assert left_behind(lab) == []


def left_behind(lab: LocalCluster) -> list[str]:
    """Return every trace of a lab: processes, cgroups, mounts, folder."""
    traces = [f"process {identity.pid} ({part})" for part, identity in marked_processes(lab.folder)]
    traces += [str(group) for group in Cgroups().left(lab.name)]
    traces += [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"{lab.folder}/" in line]
    return traces + ([str(lab.folder)] if lab.folder.exists() else [])


def test_down_leaves_nothing_of_one_lab_and_all_of_the_other(large: LocalCluster, small: LocalCluster) -> None:
    sleeper = small.start_in_network(["sleep", "600"])
    small.down()
    assert left_behind(small) == []
    assert sleeper.wait(timeout=10) == -signal.SIGKILL
    assert not small.status()["up"]
    small.down()
    assert large.kubectl("get", "nodes").returncode == 0
    with pytest.raises(LabError, match="not up"):
        small.kubectl("get", "nodes")
