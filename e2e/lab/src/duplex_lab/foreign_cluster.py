"""Clusters that the lab does not make itself: kind on Docker, and whatever $KUBECONFIG leads to.

Both follow the documentation of docker, kind and kubectl, and have not been run by their authors, whose machines have
no Docker daemon.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from duplex_lab.clients import run_client
from duplex_lab.errors import LabError
from duplex_lab.images import dockerfile, reference
from duplex_lab.namespaces import enter_network, with_prefix
from duplex_lab.paths import REPOSITORY, cache_folder
from duplex_lab.plan import checked_name
from duplex_lab.progress import Progress


class ForeignCluster(ABC):
    """What kind and current share: programs on PATH, images by Docker, and clients that reach pods by port-forward."""

    kind = "current"

    def __init__(self, name: str, progress: Progress) -> None:
        self.name = checked_name(name)
        self._progress = progress
        self.kubeconfig = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run the kubectl of PATH; LabError with its words when it fails and check is set."""
        return run_client(_program("kubectl"), arguments, self.kubeconfig, input_text=input, check=check)

    def helm(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run the helm of PATH; as `kubectl`."""
        return run_client(_program("helm"), arguments, self.kubeconfig, input_text=input, check=check)

    def image_reference(self, name: str) -> str:
        """Return the reference under which pods of this cluster find images/<name>."""
        return reference(name)

    def pod_additions(self, image: str) -> dict[str, Any]:
        """Return nothing: images are whole here."""
        del image
        return {}

    def load_images(self, names: Sequence[str]) -> None:
        """Build images with Docker and hand each to the cluster."""
        for name in names:
            target = self.image_reference(name)
            self._progress.say(f"building image {name} with Docker")
            _run("docker", "build", "--tag", target, "--file", str(dockerfile(name)), str(REPOSITORY))
            self._hand_over(target)

    def run_in_network(self, command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[Any]:  # noqa: ANN401 - subprocess.run's own
        """Run a program in the cluster's network; options are subprocess.run's."""
        check = bool(options.pop("check", False))
        return subprocess.run(self._network_command(command), check=check, **self._network_options(options))

    def start_in_network(self, command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:  # noqa: ANN401 - subprocess.Popen's own
        """Start a program in the cluster's network; options are subprocess.Popen's."""
        return subprocess.Popen(self._network_command(command), **self._network_options(options))

    @contextmanager
    def forward(self, target: str, port: int = 0) -> Iterator[int]:
        """Give a loopback port that leads to SERVICE.NAMESPACE[...]:PORT, by kubectl port-forward."""
        service, namespace, number = service_of(target)
        command = [str(_program("kubectl")), "-n", namespace, "port-forward", f"service/{service}"]
        process = subprocess.Popen(
            [*command, f"{port or ''}:{number}"],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield _forwarded_port(process)
        finally:
            process.terminate()
            process.wait()

    @abstractmethod
    def up(self, nodes: int = 1) -> None:
        """Start the cluster, or make sure that it is there."""

    @abstractmethod
    def down(self) -> None:
        """Remove what `up` made."""

    @abstractmethod
    def _hand_over(self, target: str) -> None:
        """Bring an image that Docker has to where the cluster's nodes find it."""

    def _network_command(self, command: Sequence[str | Path]) -> list[str]:
        return [str(word) for word in command]

    def _network_options(self, options: dict[str, Any]) -> dict[str, Any]:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), **(options.get("env") or {})}
        return {**options, "env": environment}


class KindCluster(ForeignCluster):
    """A kind cluster named after the lab, in Docker containers of this machine."""

    kind = "kind"

    def __init__(self, name: str, progress: Progress) -> None:
        super().__init__(name, progress)
        self._folder = cache_folder() / "kind" / name
        self.kubeconfig = self._folder / "kubeconfig"

    def up(self, nodes: int = 1) -> None:
        """Create the cluster unless kind knows it already."""
        if self.name in _run("kind", "get", "clusters").split():
            self._progress.say(f"kind cluster {self.name} is up already")
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = self._folder / "kind.json"
        settings.write_text(json.dumps(kind_settings(nodes)))
        self._progress.say(f"kind creates cluster {self.name}")
        where = ["--config", str(settings), "--kubeconfig", str(self.kubeconfig)]
        _run("kind", "create", "cluster", "--name", self.name, *where, "--wait", "180s")
        self._progress.say(f"kind cluster {self.name} is up: kubeconfig {self.kubeconfig}")

    def down(self) -> None:
        """Delete the cluster; content when there is none."""
        _run("kind", "delete", "cluster", "--name", self.name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _hand_over(self, target: str) -> None:
        _run("kind", "load", "docker-image", target, "--name", self.name)

    def _network_command(self, command: Sequence[str | Path]) -> list[str]:
        """Enter the network of the control plane's container, which on Linux is a namespace of this machine."""
        pid = _run("docker", "inspect", "--format", "{{.State.Pid}}", f"{self.name}-control-plane").strip()
        address = self.kubectl("-n", "kube-system", "get", "service", "kube-dns", "-o", "jsonpath={.spec.clusterIP}")
        resolver = self._folder / "resolv.conf"
        resolver.write_text(f"nameserver {address.stdout.strip()}\n")
        return with_prefix(enter_network(int(pid), resolver), command)


class CurrentCluster(ForeignCluster):
    """The cluster of $KUBECONFIG; images go to the registry of $DUPLEX_REGISTRY, from which its nodes pull.

    This machine must reach pod addresses and cluster DNS for `run_in_network`: run the lab in a pod, or over a VPN.
    """

    kind = "current"

    def up(self, nodes: int = 1) -> None:
        """Check that the cluster answers and has so many nodes; nothing is made."""
        found = len(self.kubectl("get", "nodes", "-o", "name").stdout.split())
        if found < nodes:
            raise LabError(f"the cluster of {self.kubeconfig} has {found} nodes and {nodes} are needed")

    def down(self) -> None:
        """Leave the cluster as it is: it is not ours to remove."""
        self._progress.say("CLUSTER=current: the cluster stays; remove what you installed with helm and kubectl")

    def image_reference(self, name: str) -> str:
        """Return the image's name in the registry."""
        registry = os.environ.get("DUPLEX_REGISTRY")
        if not registry:
            raise LabError("CLUSTER=current: set DUPLEX_REGISTRY to a registry that the cluster's nodes pull from")
        return f"{registry.rstrip('/')}/{name}:dev"

    def _hand_over(self, target: str) -> None:
        _run("docker", "push", target)


def kind_settings(nodes: int) -> dict[str, Any]:
    """Return kind's configuration: one control plane, which also runs pods, and workers beside it."""
    roles = ["control-plane"] + ["worker"] * (nodes - 1)
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": role} for role in roles],
    }


def service_of(target: str) -> tuple[str, str, str]:
    """Split SERVICE.NAMESPACE[.svc...]:PORT into service, namespace and port."""
    found = re.fullmatch(r"([a-z0-9-]+)\.([a-z0-9-]+)(?:\.svc[a-z0-9.-]*)?:(\d+)", target)
    if not found:
        raise LabError(f"{target!r}: give SERVICE.NAMESPACE.svc:PORT")
    return found.group(1), found.group(2), found.group(3)


def _forwarded_port(process: subprocess.Popen[str]) -> int:
    """Read the local port from kubectl's first line: `Forwarding from 127.0.0.1:40123 -> 8000`."""
    line = process.stdout.readline() if process.stdout else ""
    found = re.search(r"127\.0\.0\.1:(\d+)", line)
    if not found:
        raise LabError(f"kubectl port-forward failed: {line.strip() or 'see its message above'}")
    return int(found.group(1))


def _program(name: str) -> Path:
    found = shutil.which(name)
    if not found:
        raise LabError(f"{name} is not on PATH; CLUSTER=local needs neither docker nor kind nor kubectl")
    return Path(found)


def _run(name: str, *arguments: str) -> str:
    done = subprocess.run([_program(name), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"`{name} {' '.join(arguments)}` failed: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout
