"""The store that the router replicas of a serving share: one pod, without persistence."""

from __future__ import annotations

import json
from typing import Any

from duplex_lab.cluster import Cluster

NAME = "store"
PORT = 6379


def store_manifest(image: str, namespace: str) -> list[dict[str, Any]]:
    """Return a Deployment of one Redis or Valkey, and the Service in front of it."""
    labels = {"app.kubernetes.io/name": NAME}
    container = {
        "name": NAME,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": NAME, "namespace": namespace},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME, "namespace": namespace},
            "spec": {"selector": labels, "ports": [{"name": "redis", "port": PORT}]},
        },
    ]


def start_store(cluster: Cluster, namespace: str, *, seconds: float) -> str:
    """Start a store in the namespace, wait until it is ready, and return its URL."""
    items = store_manifest(cluster.image_reference(NAME), namespace)
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=manifest)
    await_store(cluster, namespace, seconds=seconds)
    return f"redis://{NAME}.{namespace}.svc.cluster.local:{PORT}"


def await_store(cluster: Cluster, namespace: str, *, seconds: float) -> None:
    """Return when the store is ready; raises LabError when it is not in time."""
    cluster.kubectl("-n", namespace, "rollout", "status", f"deployment/{NAME}", f"--timeout={seconds:.0f}s")
