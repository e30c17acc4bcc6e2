"""A plain engine beside a serving: what an answer should be."""

from __future__ import annotations

import json
from typing import Any

from .serving import Serving


def reference_manifest(pod: dict[str, Any], name: str, namespace: str) -> list[dict[str, Any]]:
    """Return a Deployment and Service of one plain engine, made from a pod of the serving.

    It is the same image, model and flags, without KV transfer and without a router: what an answer should be.
    """
    container = dict(pod["spec"]["containers"][0])
    arguments, kept = list(container["args"]), []
    while arguments:
        argument = arguments.pop(0)
        if argument in {"--kv-transfer-config", "--shutdown-timeout"}:
            arguments.pop(0)
        elif argument != "--no-enable-prefix-caching":
            kept.append(argument)
    mounts = [mount for mount in container.get("volumeMounts", []) if not mount["name"].startswith("kube-api-access")]
    container |= {"args": kept, "volumeMounts": mounts, "name": "engine"}
    volumes = [v for v in pod["spec"].get("volumes", []) if not v["name"].startswith("kube-api-access")]
    keep = ("runtimeClassName", "securityContext", "enableServiceLinks")
    template_spec = {key: pod["spec"][key] for key in keep if key in pod["spec"]}
    labels = {"app.kubernetes.io/name": name}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": template_spec
                    | {
                        "containers": [container],
                        "volumes": volumes,
                        "automountServiceAccountToken": False,
                        "terminationGracePeriodSeconds": 5,
                    },
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"selector": labels, "ports": [{"name": "http", "port": 8000, "targetPort": 8000}]},
        },
    ]


def start_reference(serving: Serving, name: str, *, seconds: float) -> str:
    """Start one plain engine beside a serving as soon as that has a decode pod; return its URL inside the cluster.

    `await_reference` says when it is ready: it may start together with the serving's engines.
    """
    pod = serving.wait(
        lambda: next(iter(serving.list("pods", role="decode")), None), seconds=seconds, what="decode pod"
    )
    items = reference_manifest(pod, name, serving.namespace)
    serving.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return f"http://{name}.{serving.namespace}.svc.cluster.local:8000"


def await_reference(serving: Serving, name: str, *, seconds: float) -> None:
    """Return when the plain engine is ready; raises LabError when it is not in time."""
    serving.kubectl("rollout", "status", f"deployment/{name}", f"--timeout={seconds:.0f}s")
