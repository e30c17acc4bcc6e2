"""The lab's Python API: one kind of object for a cluster, whatever runs it.

    from duplex_lab.cluster import open_cluster

    cluster = open_cluster("demo")                    # or kind="kind" | "current"; nothing is started yet
    cluster.up()                                      # start it; returns at once when it is up already
    cluster.load_images(["operator", "simulator"])    # build images/<name> and give them to the nodes as
                                                      # duplex.local/<name>:dev
    cluster.helm("upgrade", "--install", "duplex", "charts/duplex-operator", "--wait")
    cluster.kubectl("apply", "-f", "-", input=manifest).stdout
    cluster.run_in_network(["curl", "-sf", "http://router.demo.svc.cluster.local:8000/health"], check=True)
    with cluster.forward("router.demo.svc.cluster.local:8000") as port: ...
    cluster.down()                                    # leaves nothing; content when nothing is up

`kind`: `local` is a real Kubernetes in namespaces of this machine (Linux, root, no Docker); `kind` uses Docker and
kind; `current` uses the cluster of $KUBECONFIG and pushes images to the registry in $DUPLEX_REGISTRY.
Tests that need no pods use `duplex_lab.control_plane.ControlPlane`, which needs no root.
All failures are `duplex_lab.errors.LabError`, whose text says what to do.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from duplex_lab.errors import LabError
from duplex_lab.progress import Progress


class Cluster(Protocol):
    """A cluster that tests and the demo use; see the module's text for the order of calls."""

    @property
    def kind(self) -> str:
        """`local`, `kind` or `current`."""

    @property
    def name(self) -> str:
        """The lab's name; two names stand side by side."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, for clients on this machine."""

    def up(self, nodes: int = 1) -> None:
        """Start the cluster and wait until its nodes are Ready; leftovers of a broken run are removed first."""

    def down(self) -> None:
        """Remove the cluster and all its traces."""

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator, output captured; LabError with its words when it fails and check is set."""

    def helm(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run helm as administrator; as `kubectl`."""

    def run_in_network(
        self,
        command: Sequence[str | Path],
        **options: Any,  # noqa: ANN401 - subprocess.run's own options
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program of this machine where pod addresses, Services and cluster DNS resolve.

        Options are subprocess.run's; the environment has KUBECONFIG for that network.
        """

    def start_in_network(
        self,
        command: Sequence[str | Path],
        **options: Any,  # noqa: ANN401 - subprocess.Popen's own options
    ) -> subprocess.Popen[Any]:
        """Start a program as `run_in_network` does, without waiting; options are subprocess.Popen's."""

    def forward(self, target: str, port: int = 0) -> AbstractContextManager[int]:
        """Give a port on this machine's loopback that leads to `host:port` in the cluster's network."""

    def load_images(self, names: Sequence[str]) -> None:
        """Build images/<name> where sources changed, and give them to every node as duplex.local/<name>:dev."""

    def image_reference(self, name: str) -> str:
        """Return the reference under which pods of this cluster find images/<name>; duplex.local/<name>:dev in labs."""

    def pod_additions(self, image: str) -> dict[str, Any]:
        """Return what a DisaggregatedServing that uses this image needs on this cluster, as a merge patch.

        Empty for all but the real engine in the local lab, whose environment is the host's and not in the image.
        """


def open_cluster(name: str = "duplex", kind: str = "local", progress: Progress | None = None) -> Cluster:
    """Return the cluster of this name, running or not; LabError for a kind or name that cannot be."""
    from duplex_lab.foreign_cluster import CurrentCluster, KindCluster  # noqa: PLC0415 - they import this module
    from duplex_lab.local_cluster import LocalCluster  # noqa: PLC0415 - the same

    shown = progress or Progress()
    if kind == "local":
        return LocalCluster(name, shown)
    if kind == "kind":
        return KindCluster(name, shown)
    if kind == "current":
        return CurrentCluster(name, shown)
    raise LabError(f"CLUSTER={kind} is none of local, kind, current")
