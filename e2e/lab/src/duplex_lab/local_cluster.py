"""A real Kubernetes in namespaces of this machine: no Docker, no registry, nothing outside its folder touched.

Node 1 holds the control plane and the cluster's DNS; a relay leads from this machine's loopback to its API server.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from duplex_lab import engine as real_engine
from duplex_lab import node_settings, processes, relay
from duplex_lab.base_images import Image, pause_image
from duplex_lab.cgroups import Cgroups
from duplex_lab.clients import client_environment, run_client
from duplex_lab.components import Place, Ports
from duplex_lab.control_plane import ControlPlane
from duplex_lab.errors import LabError
from duplex_lab.images import ENGINE_CPU, build_image, reference
from duplex_lab.namespaces import end_marked_processes, enter_network, marked_environment, marked_processes, with_prefix
from duplex_lab.node import ENGINE_ENVIRONMENT, HOST_RUNTIME, Node, connect
from duplex_lab.paths import labs_folder
from duplex_lab.plan import NodePlan, checked_name
from duplex_lab.policy_agent import PolicyNode
from duplex_lab.programs import Programs, ensure_programs
from duplex_lab.progress import Progress
from duplex_lab.system import prepare_machine

_READY_SECONDS: Final = 180.0
_API_RELAY: Final = "api-relay"


@dataclass(frozen=True)
class _State:
    """What a later command must know of a running lab; the rest is read from the machine."""

    nodes: int
    api_port: int

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"nodes": self.nodes, "apiPort": self.api_port}))

    @classmethod
    def read(cls, path: Path) -> _State | None:
        try:
            document = json.loads(path.read_text())
            return cls(document["nodes"], document["apiPort"])
        except (OSError, ValueError, KeyError):
            return None


class LocalCluster:
    """The `local` kind of `duplex_lab.cluster.Cluster`."""

    kind = "local"

    def __init__(self, name: str, progress: Progress) -> None:
        self.name = checked_name(name)
        self.folder = labs_folder() / name
        self.kubeconfig = self.folder / "control" / "admin.kubeconfig"
        self._progress = progress
        self._cgroups = Cgroups()

    @cached_property
    def programs(self) -> Programs:
        """The Go programs, built on first use when they are not cached."""
        return ensure_programs(self._progress)

    def up(self, nodes: int = 1) -> None:
        """Start the lab; returns at once when it runs with so many nodes, replaces what is broken or different."""
        prepare_machine(self._progress)
        programs = self.programs
        with self._lock():
            state = _State.read(self._state_file)
            if state and state.nodes == nodes and self._healthy():
                self._progress.say(f"lab {self.name} is up already")
                return
            self._remove()
            self.folder.mkdir(parents=True)
            try:
                self._start(nodes, programs)
            except BaseException:
                # The nodes go, the logs stay for the reader; the next up begins by removing them.
                end_marked_processes(self.folder)
                raise

    def down(self) -> None:
        """End every process of the lab and remove its cgroups and folder."""
        with self._lock():
            self._remove()

    def nodes(self) -> list[Node]:
        """Return the nodes of the running lab, killed ones included; LabError when it is down."""
        state = _State.read(self._state_file)
        if state is None:
            raise LabError(f"lab {self.name} is not up: start it with `duplex-lab up --name {self.name}`")
        holders = dict(marked_processes(self.folder))
        plans = [NodePlan(self.name, index) for index in range(1, state.nodes + 1)]
        return [Node(self.folder, plan, self.programs, holders.get(plan.name)) for plan in plans]

    def node(self, name: str) -> Node:
        """Return one node by its name."""
        nodes = {node.plan.name: node for node in self.nodes()}
        if name not in nodes:
            raise LabError(f"lab {self.name} has no node {name}; it has {', '.join(nodes)}")
        return nodes[name]

    def control_plane(self) -> ControlPlane:
        """Return the control plane of the running lab."""
        first = self.nodes()[0]
        state = _State.read(self._state_file)
        if state is None:
            raise LabError(f"lab {self.name} is not up")
        return self._control_plane(first, state.api_port)

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator; LabError with its words when it fails and check is set."""
        return self._client("kubectl", arguments, input, check=check)

    def helm(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run helm as administrator; as `kubectl`."""
        return self._client("helm", arguments, input, check=check)

    def run_in_network(self, command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[Any]:  # noqa: ANN401 - subprocess.run's own options
        """Run a program of this machine in node 1's network; options are subprocess.run's."""
        check = bool(options.pop("check", False))
        return subprocess.run(self._network_command(command), check=check, **self._network_options(options))

    def start_in_network(self, command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:  # noqa: ANN401 - subprocess.Popen's own options
        """Start a program of this machine in node 1's network; options are subprocess.Popen's."""
        return subprocess.Popen(self._network_command(command), **self._network_options(options))

    @contextmanager
    def forward(self, target: str, port: int = 0) -> Iterator[int]:
        """Give a loopback port that leads to `host:port` in the lab's network while the context lasts."""
        process, bound = self._start_relay(target, port, f"forward-{target.replace(':', '-')}", dies_with_us=True)
        try:
            yield bound
        finally:
            process.terminate()
            process.wait()

    def load_images(self, names: Sequence[str]) -> None:
        """Build what changed and import it into every node; for engine-cpu also make and mount its environment."""
        for name in names:
            image = build_image(name, self._progress)
            self._import(image)
            if name == ENGINE_CPU:
                engine = real_engine.ensure(self._progress)
                for node in self.nodes():
                    node.mount(engine.venv, ENGINE_ENVIRONMENT)
                    node.mount(engine.models, real_engine.MODELS_IN_POD)

    def image_reference(self, name: str) -> str:
        """Return the reference under which pods of this cluster find images/<name>."""
        return reference(name)

    def pod_additions(self, image: str) -> dict[str, Any]:
        """Return the patch that runs real-engine pods under the runtime that shows them the machine's Python."""
        if image != ENGINE_CPU:
            return {}
        template = {"podTemplate": {"spec": {"runtimeClassName": HOST_RUNTIME}}}
        return {"spec": {"prefill": template, "decode": template}}

    def status(self) -> dict[str, Any]:
        """Return what runs, as a JSON object; `up` is False and the rest empty when nothing does."""
        if _State.read(self._state_file) is None:
            return {"name": self.name, "up": False, "components": [], "nodes": {}}
        nodes = {node.plan.name: bool(node.holder and node.holder.alive()) for node in self.nodes()}
        components = self.control_plane().running()
        return {"name": self.name, "up": self._healthy(), "components": components, "nodes": nodes}

    def logs(self) -> dict[str, Path]:
        """Return every log file by a name such as `kube-apiserver` or `node1/kubelet`."""
        found = {file.stem: file for file in sorted((self.folder / "control" / "logs").glob("*.log"))}
        for file in sorted(self.folder.glob("node*/log/*.log")):
            found[f"{file.parent.parent.name}/{file.stem}"] = file
        return found

    @property
    def _state_file(self) -> Path:
        return self.folder / "lab.json"

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Let one command at a time start or remove this lab; the kernel drops the lock when we die."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with (self.folder.parent / f"{self.name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _healthy(self) -> bool:
        if not all(node.holder and node.holder.alive() for node in self.nodes()):
            return False
        return self.control_plane().answers("/readyz")

    def _remove(self) -> None:
        end_marked_processes(self.folder)
        self._cgroups.remove(self.name)
        mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        inside = [path for path in mounted if path.startswith(f"{self.folder}/")]
        if inside:
            raise LabError(f"still mounted below the lab's folder, which is therefore kept: {', '.join(inside)}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, count: int, programs: Programs) -> None:
        say = self._progress.say
        nodes = [Node(self.folder, NodePlan(self.name, index), programs, None) for index in range(1, count + 1)]
        first = nodes[0]
        nameserver = first.plan.address
        for index, node in enumerate(nodes):
            node.create(nameserver, self._cgroups)
            connect(node, first, nodes[1:index])
        target = f"{first.plan.address}:{Ports().apiserver}"
        say(f"made the namespaces of {count} node{'s' if count > 1 else ''}")
        _, port = self._start_relay(target, 0, _API_RELAY, first=first)
        control = self._control_plane(first, port)
        sandbox = pause_image(programs.path("pause"))
        with ThreadPoolExecutor() as pool:
            waiting = [pool.submit(_ready_containerd, node, sandbox) for node in nodes]
            control.start()
            say("the control plane answers")
            for each in waiting:
                each.result()
        for node in nodes:
            kubeconfig = control.node_kubeconfig(node.plan.name)
            node.start_kubelet(kubeconfig, control.inside_kubeconfig, control.authority_certificate, nameserver)
        first.start_dns(control.inside_kubeconfig)
        self._start_policies(nodes, control)
        control.kubectl("apply", "-f", "-", input=json.dumps(node_settings.runtime_class(HOST_RUNTIME)))
        self._await_nodes(control, count)
        _State(count, port).write(self._state_file)
        say(f"lab {self.name} is up: {count} node{'s' if count > 1 else ''} Ready, kubeconfig {self.kubeconfig}")

    def _start_policies(self, nodes: Sequence[Node], control: ControlPlane) -> None:
        """Start what enforces NetworkPolicies, which a bridge does not."""
        held = [PolicyNode(node.holder, node.plan.address, node.plan.pod_range) for node in nodes if node.holder]
        settings = self.folder / "policies.json"
        given = {"server": control.place.server, "pki": str(control.folder / "pki")}
        settings.write_text(json.dumps({**given, "nodes": [node.record() for node in held]}))
        processes.start(
            [sys.executable, "-m", "duplex_lab.policy_agent", settings],
            self.folder / "control" / "logs" / "policies.log",
            environment=marked_environment(self.folder, "policies"),
        )

    def _control_plane(self, first: Node, api_port: int) -> ControlPlane:
        place = Place(first.plan.address, Ports(), f"https://127.0.0.1:{api_port}", first.prefix)
        return ControlPlane(
            self.folder / "control", programs=self.programs, place=place, lives_on=True, progress=self._progress
        )

    def _await_nodes(self, control: ControlPlane, count: int) -> None:
        def ready() -> bool:
            shown = control.kubectl("get", "nodes", "-o", "json", check=False)
            if shown.returncode:
                return False
            nodes = json.loads(shown.stdout)["items"]
            conditions = [condition for node in nodes for condition in node["status"].get("conditions", ())]
            fit = [each for each in conditions if each["type"] == "Ready" and each["status"] == "True"]
            return len(fit) == count

        if not processes.wait_until(ready, _READY_SECONDS):
            log = self.logs()["node1/kubelet"]
            raise LabError(
                f"not all nodes are Ready after {_READY_SECONDS:.0f} s; kubelet says:\n{processes.last_lines(log)}"
            )

    def _start_relay(
        self, target: str, port: int, part: str, *, dies_with_us: bool = False, first: Node | None = None
    ) -> tuple[subprocess.Popen[bytes], int]:
        host, _, number = target.rpartition(":")
        if not host or not number.isdigit():
            raise LabError(f"{target!r}: give host:port, such as router.demo.svc.cluster.local:8000")
        node = first or self.nodes()[0]
        with relay.listening(port) as listener:
            descriptor = listener.fileno()
            command = [sys.executable, "-m", "duplex_lab.relay", str(descriptor), host, number]
            process = processes.start(
                self._network_command(command, node),
                self.folder / "relays.log",
                environment=marked_environment(self.folder, part),
                dies_with_us=dies_with_us,
                pass_fds=[descriptor],
            )
            return process, int(listener.getsockname()[1])

    def _network_command(self, command: Sequence[str | Path], node: Node | None = None) -> list[str]:
        first = node or self.nodes()[0]
        if first.holder is None or not first.holder.alive():
            raise LabError(f"node1 of lab {self.name} does not run: start the lab anew with `duplex-lab up`")
        return with_prefix(enter_network(first.holder.pid, first.folder / "etc" / "resolv.conf"), command)

    def _network_options(self, options: dict[str, Any]) -> dict[str, Any]:
        inside = {"KUBECONFIG": str(self.folder / "control" / "inside.kubeconfig")}
        environment = {**marked_environment(self.folder, "client"), **inside, **(options.get("env") or {})}
        return {**options, "env": environment}

    def _client(
        self, program: str, arguments: Sequence[str], text: str | None, *, check: bool
    ) -> subprocess.CompletedProcess[str]:
        self.nodes()  # says clearly that the lab is down, where the client would only fail to connect
        return run_client(self.programs.path(program), arguments, self.kubeconfig, input_text=text, check=check)

    def client_command(self, program: str, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return the command line and environment that run kubectl or helm in the user's own terminal."""
        self.nodes()
        return [str(self.programs.path(program)), *arguments], client_environment(self.kubeconfig)

    def _import(self, image: Image) -> None:
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(node.import_image, image.archive, image.reference) for node in self.nodes()]:
                done.result()
        self._progress.say(f"loaded {image.reference}")


def _ready_containerd(node: Node, sandbox: Image) -> None:
    node.start_containerd()
    node.import_image(sandbox.archive, sandbox.reference)
