"""Put Duplex into a cluster the way users do: images where the cluster finds them, then its Helm chart."""

from __future__ import annotations

from pathlib import Path

from duplex_lab.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/duplex-operator"
SYSTEM_NAMESPACE = "duplex-system"
RELEASE = "duplex"
_DEPLOYMENT = "deployment/duplex-operator"
CONTROL_IMAGES = ("operator", "router", "connector")


def install_operator(cluster: Cluster, *, timeout_seconds: int = 300) -> None:
    """Install the chart, or bring an installed one up to date, and wait until the operator is available."""
    repository, _, tag = cluster.image_reference("operator").rpartition(":")
    settings = {
        "image.repository": repository,
        "image.tag": tag,
        "routerImage": cluster.image_reference("router"),
        "connectorImage": cluster.image_reference("connector"),
    }
    arguments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    was_there = cluster.helm("status", RELEASE, "--namespace", SYSTEM_NAMESPACE, check=False).returncode == 0
    cluster.helm(
        "upgrade",
        "--install",
        RELEASE,
        str(CHART),
        "--namespace",
        SYSTEM_NAMESPACE,
        "--create-namespace",
        "--wait",
        f"--timeout={timeout_seconds}s",
        *arguments,
    )
    if was_there:
        # A cluster that an earlier run left has the operator of then: the image's name says nothing of its content.
        for verb in (("restart",), ("status", f"--timeout={timeout_seconds}s")):
            cluster.kubectl("-n", SYSTEM_NAMESPACE, "rollout", verb[0], _DEPLOYMENT, *verb[1:])


def operator_log(cluster: Cluster, lines: int = 60) -> str:
    """Return the operator's last words, for the reader of a failure."""
    selector = "app.kubernetes.io/name=duplex-operator"
    found = cluster.kubectl(
        "-n", SYSTEM_NAMESPACE, "logs", "-l", selector, f"--tail={lines}", "--prefix", "--all-containers", check=False
    )
    return str(found.stdout)
