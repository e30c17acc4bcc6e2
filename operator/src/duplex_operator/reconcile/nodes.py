"""Which nodes are about to go: cordoned by people, or marked by what ends nodes."""

from enum import Enum
from typing import Final

from duplex_kube.api import KubeObject


class NodeState(Enum):
    """STAYS; LEAVES: it takes no new pods, and will be drained; ENDS: it goes within minutes, whatever is on it."""

    STAYS = 0
    LEAVES = 1
    ENDS = 2


_LEAVES: Final = (
    "karpenter.sh/disrupted",
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/",
)
"""Beginnings of taints that announce a drain: Karpenter, Cluster Autoscaler, AWS Node Termination Handler."""

_ENDS: Final = ("aws-node-termination-handler/spot-itn", "node.kubernetes.io/out-of-service")
"""Taints of nodes that end anyhow: two minutes before a spot interruption, and once a node is given up."""


def state_of(node: KubeObject) -> NodeState:
    """Judge a Node object."""
    spec = node.get("spec") or {}
    taints = [str(taint.get("key")) for taint in spec.get("taints") or ()]
    if any(taint in _ENDS for taint in taints):
        return NodeState.ENDS
    leaves = spec.get("unschedulable") or "deletionTimestamp" in node["metadata"]
    return NodeState.LEAVES if leaves or any(taint.startswith(_LEAVES) for taint in taints) else NodeState.STAYS
