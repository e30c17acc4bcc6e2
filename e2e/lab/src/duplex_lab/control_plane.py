"""A Kubernetes control plane as plain processes: etcd, API server, controllers, scheduler, and kwok if asked.

With `ControlPlane(folder)` on loopback, tests have the real API server in a few seconds and no root is needed; the
lab's nodes use the same class inside their network. Everything it writes is below its folder.

    with ControlPlane(tmp_path / "cluster", fake_nodes=1) as cluster:
        cluster.kubectl("apply", "-f", "-", input=manifest)
        use(cluster.kubeconfig)
"""

from __future__ import annotations

import json
import shutil
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from duplex_lab import audit, components, processes
from duplex_lab.certificates import KeyPair, write_kubeconfig
from duplex_lab.clients import run_client
from duplex_lab.components import KWOK_NODE_ANNOTATION, Keys, Place
from duplex_lab.errors import LabError
from duplex_lab.processes import ProcessIdentity, ProcessRecord
from duplex_lab.programs import Programs, ensure_programs
from duplex_lab.progress import Progress

_START_SECONDS: Final = 180.0
"""Enough for a machine many times slower or busier than the 4 s that a quiet one takes."""


class ControlPlane:
    """One control plane in one folder; starting it ends and wipes whatever an earlier run left there.

    `fake_nodes` starts kwok with so many pretended nodes, on which pods become Ready at once and run nothing.
    `lives_on` lets the components outlive this process (the lab); otherwise they die with it, even by kill -9.
    """

    def __init__(
        self,
        folder: Path,
        *,
        programs: Programs | None = None,
        place: Place | None = None,
        fake_nodes: int = 0,
        lives_on: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self.inside_kubeconfig = self.folder / "inside.kubeconfig"
        self.authority_certificate = self.folder / "pki" / "ca.crt"
        self.programs = programs or ensure_programs(progress or Progress())
        self.place = place or Place.loopback()
        self._fake_nodes = fake_nodes
        self._lives_on = lives_on
        self._record = ProcessRecord(self.folder / "processes.json")
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything; returns when the API server is ready and the default service account exists."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)
        keys = Keys(self.folder / "pki", self.place)
        authority = keys.authority.certificate
        write_kubeconfig(self.kubeconfig, self.place.server, authority, keys.admin)
        write_kubeconfig(self.inside_kubeconfig, self.place.inside_server, authority, keys.admin)
        self._keys = keys
        self._start("etcd", components.etcd_flags(self.folder, self.place))
        audit_policy = self.folder / "audit-policy.json"
        audit_policy.write_text(json.dumps(audit.POLICY))
        self.audit_log.parent.mkdir(exist_ok=True)
        flags = components.apiserver_flags(self.place, keys, audit_policy, self.audit_log)
        self._start("kube-apiserver", flags)
        self._wait("/livez")
        self._start_client("kube-controller-manager", keys.controllers, components.controllers_flags(self.place, keys))
        self._start_client("kube-scheduler", keys.scheduler, components.scheduler_flags(self.place))
        self._wait("/readyz")
        self._wait("/api/v1/namespaces/default/serviceaccounts/default")
        if self._fake_nodes:
            self._start_kwok()

    def stop(self) -> None:
        """End every component that this or an earlier run started here, etcd last. The folder stays, for its logs."""
        for identity in reversed(self._record.read().values()):
            processes.stop(identity)
        self._record.clear()
        for process in self._started:
            process.wait(10)  # takes its exit status, or it stays a zombie of ours
        self._started.clear()

    def restart(self, component: str) -> None:
        """Kill one component (SIGKILL) and start it anew with the same command line; returns when the API is ready."""
        identity = self._record.read().get(component)
        if identity is None or not identity.alive():
            raise LabError(f"{component} does not run; running: {', '.join(self.running()) or 'nothing'}")
        words = Path(f"/proc/{identity.pid}/cmdline").read_text().rstrip("\0").split("\0")
        identity.send(signal.SIGKILL)
        processes.wait_until(lambda: not identity.alive(), 10)
        self._start(component, words[1:])
        self._wait("/readyz")

    def running(self) -> list[str]:
        """Return the names of the components that run now."""
        return [name for name, identity in self._record.read().items() if identity.alive()]

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the cluster's administrator; LabError with its words when it fails, unless check is False."""
        return run_client(self.programs.path("kubectl"), arguments, self.kubeconfig, input_text=input, check=check)

    def helm(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run helm as the cluster's administrator; errors as `kubectl`'s."""
        return run_client(self.programs.path("helm"), arguments, self.kubeconfig, input_text=input, check=check)

    def node_kubeconfig(self, node: str) -> Path:
        """Write and return the kubeconfig of a node's kubelet; only between `start` and the end of this process."""
        return self._component_kubeconfig(f"node-{node}", self._keys.node(node))

    def log(self, component: str) -> Path:
        """Return the log file of a component, such as `kube-apiserver`."""
        return self.folder / "logs" / f"{component}.log"

    @property
    def audit_log(self) -> Path:
        """The log of what service accounts asked; see `duplex_lab.audit`."""
        return self.folder / "logs" / "audit.jsonl"

    def answers(self, path: str) -> bool:
        """Say whether the API server answers 200 to the administrator for this path."""
        context = ssl.create_default_context(cafile=self.authority_certificate)
        context.load_cert_chain(self.folder / "pki" / "admin.crt", self.folder / "pki" / "admin.key")
        # No proxy: the address is this machine's, whatever the environment says about proxies.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(self.place.server + path, timeout=5) as answer:
                return bool(answer.status == 200)  # noqa: PLR2004 - HTTP's OK
        except (OSError, urllib.error.HTTPError):
            return False

    def _component_kubeconfig(self, name: str, user: KeyPair) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        return write_kubeconfig(path, self.place.inside_server, self.authority_certificate, user)

    def _start_client(self, name: str, user: KeyPair, flags: list[str]) -> None:
        """Start a component that is itself a client of the API server and asks it who may call the component."""
        kubeconfig = self._component_kubeconfig(name, user)
        given = [f"--{purpose}kubeconfig={kubeconfig}" for purpose in ("", "authentication-", "authorization-")]
        self._start(name, [*given, *flags])

    def _start(self, name: str, flags: list[str]) -> None:
        command = [*self.place.enter, str(self.programs.path(name)), *flags]
        process = processes.start(command, self.log(name), dies_with_us=not self._lives_on)
        self._started.append(process)
        pid = processes.only_child(process.pid) if self.place.enter else process.pid
        self._record.add(name, ProcessIdentity.of(pid))

    def _start_kwok(self) -> None:
        stages = self.folder / "kwok.yaml"
        with stages.open("wb") as file:
            subprocess.run([self.programs.path("kwok-stages")], stdout=file, check=True)
        self._start("kwok", components.kwok_flags(self.place, self.inside_kubeconfig, stages))
        nodes = [_fake_node(f"fake-{index}") for index in range(self._fake_nodes)]
        self.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
        self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")

    def _wait(self, path: str) -> None:
        if not processes.wait_until(lambda: self.answers(path) or self._ended() is not None, _START_SECONDS):
            raise LabError(f"no answer to {path} within {_START_SECONDS:.0f} s; the logs are in {self.folder}/logs")
        if ended := self._ended():
            raise LabError(
                f"{ended} ended while starting; the end of its log:\n{processes.last_lines(self.log(ended))}"
            )

    def _ended(self) -> str | None:
        return next((name for name, identity in self._record.read().items() if not identity.alive()), None)


def _fake_node(name: str) -> dict[str, Any]:
    room = {"cpu": "64", "memory": "512Gi", "pods": "500"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {KWOK_NODE_ANNOTATION: "fake"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"},
        },
        "status": {"allocatable": room, "capacity": room},
    }
