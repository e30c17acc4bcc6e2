"""Faults for the local lab: what happens to pods, nodes and networks in earnest, on demand.

Each function takes the running cluster and returns one line that says what was done.
"""

from __future__ import annotations

import ipaddress
import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from duplex_lab.errors import LabError
from duplex_lab.local_cluster import LocalCluster
from duplex_lab.node import Node

_CHAIN: Final = "DUPLEX-CUT"
_GONE_SECONDS: Final = 30
_LOOK_SECONDS: Final = 0.05
_CTR: Final = ("ctr", "--namespace", "k8s.io")


def kill_pod(cluster: LocalCluster, target: str, number: signal.Signals = signal.SIGKILL) -> str:
    """Send a signal to the first process of a pod's containers, or of the one named: NAMESPACE/POD[/CONTAINER].

    kubelet sees the container end and restarts it in the living pod: an engine gets a new boot, not a new pod. After
    SIGKILL it returns when all processes of the container are gone: they end after the first one, and read until then.
    """
    containers = _containers(cluster, target)
    for container in containers:
        _tasks(container, "kill", "--signal", number.name, container.identity)
    if number is signal.SIGKILL:
        for container in containers:
            _wait_until_gone(container)
    return f"sent {number.name} to {_names(containers)} of {target}"


def freeze(cluster: LocalCluster, target: str) -> str:
    """Stop every process of a pod's containers where it stands; connections stay open and nothing answers."""
    containers = _containers(cluster, target)
    for container in containers:
        _tasks(container, "pause", container.identity)
    return f"froze {_names(containers)} of {target}; thaw it with `fault thaw {target}`"


def thaw(cluster: LocalCluster, target: str) -> str:
    """Let the processes of a frozen pod go on."""
    containers = _containers(cluster, target)
    for container in containers:
        _tasks(container, "resume", container.identity)
    return f"thawed {_names(containers)} of {target}"


def cut(cluster: LocalCluster, address: str) -> str:
    """Drop every packet from and to a pod, its node's probes included, without a word to either side."""
    try:
        wanted = str(ipaddress.ip_address(address))
    except ValueError as error:
        raise LabError(f"{address!r} is not an address: give a pod's, from `kubectl get pods -o wide`") from error
    node = _node_of_address(cluster, wanted)
    _drop(node, [("-s", wanted), ("-d", wanted)])
    return f"cut {wanted} off on {node.plan.name}; mend it with `fault heal`"


def cut_pair(cluster: LocalCluster, addresses: str) -> str:
    """Drop every packet between two pods, ADDRESS,ADDRESS: each goes on with all others, probes included."""
    pair = addresses.split(",")
    try:
        one, other = (str(ipaddress.ip_address(address)) for address in pair)
    except ValueError as error:
        raise LabError(f"{addresses!r}: give the addresses of two pods, ADDRESS,ADDRESS") from error
    node = _node_of_address(cluster, one)
    _drop(node, [("-s", one, "-d", other), ("-s", other, "-d", one)])
    return f"cut {one} and {other} off from each other on {node.plan.name}; mend it with `fault heal`"


def _drop(node: Node, matches: Sequence[tuple[str, ...]]) -> None:
    # The raw table comes first, so connections that are already tracked are cut as well.
    rules = "\n".join(f"iptables -w -t raw -A {_CHAIN} {' '.join(words)} -j DROP" for words in matches)
    node.script(f"""
iptables -w -t raw -N {_CHAIN} 2>/dev/null || true
for chain in PREROUTING OUTPUT; do
  iptables -w -t raw -C $chain -j {_CHAIN} 2>/dev/null || iptables -w -t raw -I $chain -j {_CHAIN}
done
{rules}
""")


def heal(cluster: LocalCluster) -> str:
    """Take back every `cut` and `cut-pair`."""
    for node in _running(cluster):
        node.script(f"iptables -w -t raw -F {_CHAIN} 2>/dev/null || true")
    return "healed the network"


def restart_apiserver(cluster: LocalCluster) -> str:
    """Kill the API server, and start it anew on the same data; returns when it is ready again."""
    cluster.control_plane().restart("kube-apiserver")
    return "restarted kube-apiserver"


def kill_node(cluster: LocalCluster, name: str) -> str:
    """End a node at once, as a power cut does; the cluster notices after its grace period (50 s)."""
    node = cluster.node(name)
    if node.plan.index == 1:
        raise LabError("node1 holds the control plane: start a lab with --nodes 2 or more and kill another node")
    if node.holder is None or not node.holder.send(signal.SIGKILL):
        raise LabError(f"{name} does not run")
    return f"killed {name}"


@dataclass(frozen=True)
class _Container:
    node: Node
    name: str
    identity: str


def _containers(cluster: LocalCluster, target: str) -> list[_Container]:
    parts = target.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise LabError(f"{target!r}: give NAMESPACE/POD or NAMESPACE/POD/CONTAINER")
    namespace, pod, *only = parts
    document: dict[str, Any] = json.loads(cluster.kubectl("-n", namespace, "get", "pod", pod, "-o", "json").stdout)
    node = cluster.node(document["spec"]["nodeName"])
    running = [
        _Container(node, each["name"], each["containerID"].partition("://")[2])
        for each in document["status"].get("containerStatuses", ())
        if "running" in each["state"] and (not only or each["name"] == only[0])
    ]
    if not running:
        raise LabError(f"no running container {only[0] if only else ''} in {namespace}/{pod}".replace("  ", " "))
    return running


def _names(containers: list[_Container]) -> str:
    return ", ".join(container.name for container in containers)


def _tasks(container: _Container, *words: str) -> str:
    done = container.node.run([*_CTR, "tasks", *words])
    if done.returncode:
        raise LabError(f"{container.name}: `ctr tasks {words[0]}` failed: {done.stderr.strip()}")
    return done.stdout


def _wait_until_gone(container: _Container) -> None:
    # The kernel ends a container's first process only once it has ended all others (pid_namespaces(7)).
    deadline = time.monotonic() + _GONE_SECONDS
    while any(line.split()[0] == container.identity and "RUNNING" in line for line in _task_list(container)):
        if time.monotonic() > deadline:
            raise LabError(f"{container.name} still runs {_GONE_SECONDS} s after SIGKILL")
        time.sleep(_LOOK_SECONDS)


def _task_list(container: _Container) -> list[str]:
    return [line for line in _tasks(container, "list").splitlines()[1:] if line.strip()]


def _running(cluster: LocalCluster) -> list[Node]:
    return [node for node in cluster.nodes() if node.holder and node.holder.alive()]


def _node_of_address(cluster: LocalCluster, address: str) -> Node:
    inside = ipaddress.ip_address(address)
    for node in _running(cluster):
        if inside in ipaddress.ip_network(node.plan.pod_range):
            return node
    raise LabError(f"{address} is no pod's address here: see `kubectl get pods -o wide`")


WITH_TARGET: Final[dict[str, Callable[[LocalCluster, str], str]]] = {
    "kill-pod": kill_pod,
    "freeze": freeze,
    "thaw": thaw,
    "cut": cut,
    "cut-pair": cut_pair,
    "kill-node": kill_node,
}
WITHOUT_TARGET: Final[dict[str, Callable[[LocalCluster], str]]] = {
    "heal": heal,
    "restart-apiserver": restart_apiserver,
}
