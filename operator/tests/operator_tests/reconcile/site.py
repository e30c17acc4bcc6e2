"""The rest of a cluster around the fake API server: Deployments get pods that are ready, routers obey the fleet."""

import copy
import json
from typing import Any

from duplex_connector.contract import Annotation
from duplex_kube.api import DEPLOYMENTS, NODES, PODS, KubeObject
from operator_tests.fake_kube import Cluster

ROLES = ("prefill", "decode")


class Site:
    """Controllers, kubelets and routers of one namespace. `deaf`: routers apply no document any more."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._made = 0
        self.deaf = False
        self.applied: dict[str, Any] = {}
        self.held: dict[str, int] = {}
        """Tokens held by pod."""
        self.deleted: list[KubeObject] = []

    def copied(self, cluster: Cluster) -> "Site":
        """Return the same for a copy of its cluster."""
        other = Site(cluster)
        other._made, other.applied, other.held = self._made, copy.deepcopy(self.applied), dict(self.held)
        return other

    def act(self) -> None:
        """Do all that is to be done now: pods first, then what Deployments say of them, then the routers."""
        for (plural, _, _), obj in list(self._cluster.objects.items()):
            if plural == DEPLOYMENTS.plural:
                self._scale(obj)
        alive = {key[2] for key in self._cluster.objects if key[0] == DEPLOYMENTS.plural}
        for pod in self.pods():
            if pod["metadata"]["annotations"]["deployment"] not in alive:
                self._end(pod)
        fleet = self.fleet()
        if fleet and not self.deaf:
            self.applied = fleet

    def fleet(self) -> dict[str, Any]:
        """Return the fleet document that is written."""
        found = self._cluster.objects.get(("configmaps", "n", "chat-fleet"))
        document: dict[str, Any] = json.loads(found["data"]["fleet.json"]) if found else {}
        return document

    def stats(self) -> dict[str, Any]:
        """Return what a router says: a token came through each revision that has a pair."""
        pairs = {name for name in self.revisions() if self.pair(name)}
        return {
            "fleetVersion": self.applied.get("version", [0, 0]),
            "revisions": {name: {"servedTokens": int(name in pairs)} for name in self.revisions()},
            "loads": {pod: {"legs": 0, "tokens": tokens, "value": tokens} for pod, tokens in self.held.items()},
        }

    def revisions(self) -> list[str]:
        """Return the revisions that the routers know."""
        return [entry["name"] for entry in self.applied.get("revisions", ())]

    def pods(self, deployment: str = "") -> list[KubeObject]:
        """Return all pods, or those of one Deployment."""
        found = [
            obj
            for (plural, _, _), obj in self._cluster.objects.items()
            if plural == PODS.plural and obj["status"].get("phase") != "Failed"
        ]
        return [pod for pod in found if not deployment or pod["metadata"]["annotations"]["deployment"] == deployment]

    def pair(self, revision: str) -> bool:
        """Tell whether a revision has engines of both roles that the routers may use."""
        draining = self.applied.get("draining", ())
        roles = {
            pod["metadata"]["labels"]["duplex.dev/role"]
            for pod in self.pods()
            if pod["metadata"]["labels"].get("duplex.dev/revision") == revision
            and pod["metadata"]["name"] not in draining
        }
        return roles == set(ROLES)

    def takes_conversations(self) -> bool:
        """Tell whether a new conversation finds a pair."""
        return any(entry["weight"] and self.pair(entry["name"]) for entry in self.applied.get("revisions", ()))

    def _scale(self, deployment: KubeObject) -> None:
        metadata, wanted = deployment["metadata"], deployment["spec"]["replicas"]
        own = self.pods(metadata["name"])
        own.sort(key=lambda pod: int(pod["metadata"]["annotations"].get(Annotation.DELETION_COST, 0)))
        for pod in own[: max(0, len(own) - wanted)]:
            self._end(pod)
        for _ in range(wanted - len(own)):
            self._start(deployment)
        status = {"readyReplicas": wanted, "updatedReplicas": wanted, "observedGeneration": metadata["generation"]}
        if deployment.get("status") != status:
            self._cluster.put(DEPLOYMENTS, copy.deepcopy(deployment) | {"status": status}, "MODIFIED")

    def _start(self, deployment: KubeObject) -> None:
        self._made += 1
        metadata = {
            "name": f"{deployment['metadata']['name']}-{self._made}",
            "namespace": "n",
            "uid": f"uid-of-pod-{self._made}",
            "labels": deployment["spec"]["template"]["metadata"]["labels"],
            "annotations": {"deployment": deployment["metadata"]["name"]},
        }
        status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        pod = {"metadata": metadata, "spec": {"nodeName": self._node()}, "status": status}
        self._cluster.put(PODS, pod, "ADDED")

    def _node(self) -> str:
        """Return the node that takes the next pod: of those that take any, if there are nodes at all."""
        nodes = [obj for (plural, _, _), obj in self._cluster.objects.items() if plural == NODES.plural]
        able = sorted(obj["metadata"]["name"] for obj in nodes if not (obj.get("spec") or {}).get("unschedulable"))
        return able[self._made % len(able)] if able else ""

    def evict(self, pod: KubeObject) -> None:
        """Let a pod be told to end, which it takes its time for."""
        metadata = pod["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        self._cluster.put(PODS, copy.deepcopy(pod) | {"metadata": metadata}, "MODIFIED")

    def end_by_node(self, pod: KubeObject) -> None:
        """Let a node end a pod for good, as a kubelet does that lacks memory; nobody deletes what is left of it."""
        status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        self._cluster.put(PODS, copy.deepcopy(pod) | {"status": status}, "MODIFIED")

    def _end(self, pod: KubeObject) -> None:
        self.deleted.append(pod)
        self._cluster.put(PODS, copy.deepcopy(pod), "DELETED")
