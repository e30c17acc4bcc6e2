"""One node of the local lab: namespaces held by one process, with containerd, kubelet and kube-proxy inside.

Nothing on the machine changes: /run, /var/log and /var/lib are the node's own, its network has no way out, and its
cgroup bears the lab's name. Killing the holder ends the node and drops its mounts and network.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from duplex_lab import node_settings, processes
from duplex_lab.cgroups import Cgroups
from duplex_lab.engine import MODELS_IN_POD, VENV_IN_POD
from duplex_lab.errors import LabError
from duplex_lab.namespaces import enter, start_holder, with_prefix
from duplex_lab.plan import NodePlan
from duplex_lab.processes import ProcessIdentity
from duplex_lab.programs import Programs
from duplex_lab.system import cni_folder

HOST_RUNTIME: Final = "duplex-host"
"""RuntimeClass whose containers see the machine's /usr, Python and engine environment read-only."""

ENGINE_ENVIRONMENT: Final = "/var/lib/duplex/engine"
"""Where a node shows the real engine's environment, for the host runtime to mount into containers."""
_CTR: Final = ("ctr", "--namespace", "k8s.io")
_CONTAINERD_SECONDS: Final = 60.0


class Node:
    """A node by its plan; `holder` is its process, None when the node does not run."""

    def __init__(self, lab: Path, plan: NodePlan, programs: Programs, holder: ProcessIdentity | None) -> None:
        self.plan = plan
        self.holder = holder
        self.folder = lab / plan.name
        self._lab = lab
        self._programs = programs

    @property
    def prefix(self) -> tuple[str, ...]:
        """The command prefix that runs a program inside the node."""
        if self.holder is None or not self.holder.alive():
            raise LabError(f"{self.plan.name} of lab {self.plan.lab} does not run: start it with `duplex-lab up`")
        return enter(self.holder)

    def run(self, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        """Run a program inside the node to its end, output captured; the caller looks at its exit status."""
        return subprocess.run(with_prefix(self.prefix, command), capture_output=True, text=True, check=False)

    def script(self, text: str) -> None:
        """Run a shell script inside the node; LabError with its words when a line of it fails."""
        done = self.run(["sh", "-euc", text])
        if done.returncode:
            raise LabError(f"{self.plan.name}: {done.stderr.strip() or done.stdout.strip()}; the script was:\n{text}")

    def create(self, nameserver: str, cgroups: Cgroups) -> None:
        """Make the node's folder, cgroup and namespaces, with private folders where its programs write."""
        for name in ("log", "var-log", "etc/cni"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        resolver = self.folder / "etc" / "resolv.conf"
        resolver.write_text(f"nameserver {nameserver}\n")
        cgroups.create(self.plan.cgroup)
        self.holder = start_holder(self._lab, self.plan.name, self._programs.path("pause"), self.log("holder"))
        self.script(_folders_script(self._lab, self.folder, self.plan.name, os.path.realpath("/etc/resolv.conf")))

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers."""
        plugins = cni_folder()
        if plugins is None:
            raise LabError("the CNI plug-ins are not installed")
        settings = self.folder / "etc"
        network = node_settings.container_network(self.plan.pod_range)
        (settings / "cni" / "10-lab.conflist").write_text(json.dumps(network, indent=1))
        runtime = settings / "duplex-host.json"
        default = subprocess.run(["ctr", "oci", "spec"], capture_output=True, check=True).stdout
        mounts = {"/usr": "/usr", sys.base_prefix: sys.base_prefix, ENGINE_ENVIRONMENT: VENV_IN_POD}
        runtime.write_text(json.dumps(node_settings.host_runtime(json.loads(default), mounts), indent=1))
        file = settings / "containerd.toml"
        file.write_text(node_settings.containerd(settings / "cni", plugins, HOST_RUNTIME, runtime))
        process = self._start("containerd", ["containerd", "-c", file])
        answered = processes.wait_until(
            lambda: process.poll() is not None or self._containerd_answers(), _CONTAINERD_SECONDS
        )
        if not answered or process.poll() is not None:
            raise LabError(f"containerd of {self.plan.name}: {processes.last_lines(self.log('containerd'))}")

    def start_kubelet(self, kubeconfig: Path, admin: Path, authority: Path, nameserver: str) -> None:
        """Start kubelet and kube-proxy; the node registers itself and becomes Ready some seconds later."""
        settings = self.folder / "etc"
        kubelet, proxy = settings / "kubelet.json", settings / "kube-proxy.json"
        resolver = settings / "resolv.conf"
        kubelet.write_text(json.dumps(node_settings.kubelet(self.plan, authority, nameserver, resolver), indent=1))
        proxy.write_text(json.dumps(node_settings.kube_proxy(self.plan, admin), indent=1))
        self._start(
            "kubelet",
            [
                self._programs.path("kubelet"),
                f"--config={kubelet}",
                f"--kubeconfig={kubeconfig}",
                f"--hostname-override={self.plan.name}",
                f"--node-ip={self.plan.address}",
            ],
        )
        self._start("kube-proxy", [self._programs.path("kube-proxy"), f"--config={proxy}"])

    def start_dns(self, kubeconfig: Path) -> None:
        """Start the cluster's DNS server on this node's address."""
        file = self.folder / "etc" / "Corefile"
        file.write_text(node_settings.dns(self.plan.address, kubeconfig))
        self._start("coredns", [self._programs.path("coredns"), "-conf", file])

    def import_image(self, archive: Path, reference: str) -> None:
        """Give the node's containerd the image in an archive under a reference, in the place of an older one.

        Archives are named by their content, so one that the node has under this reference already is left out.
        """
        record = self.folder / "images.json"
        present: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
        if present.get(reference) == archive.name:
            return
        done = self.run([*_CTR, "images", "import", archive])
        if done.returncode:
            raise LabError(f"{self.plan.name}: importing {reference} from {archive} failed: {done.stderr.strip()}")
        record.write_text(json.dumps(present | {reference: archive.name}))

    def mount(self, source: Path, target: str) -> None:
        """Show a folder of the machine at a path of the node, read-only, in the place of what was shown before."""
        here, there = shlex.quote(str(source)), shlex.quote(target)
        self.script(
            f"while mountpoint -q {there}; do umount {there}; done\n"
            f"mkdir -p {there}; mount --bind {here} {there}; mount -o remount,bind,ro {there}"
        )

    def log(self, component: str) -> Path:
        """Return the log file of one of the node's programs."""
        return self.folder / "log" / f"{component}.log"

    def start_program(self, name: str, command: Sequence[str | Path]) -> None:
        """Start a program that ends with the node, its output in the log of that name."""
        self._start(name, command)

    def _containerd_answers(self) -> bool:
        return self.run(["ctr", "version"]).returncode == 0

    def _start(self, name: str, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        return processes.start(with_prefix(self.prefix, command), self.log(name))


def connect(node: Node, first: Node, others: Sequence[Node]) -> None:
    """Put a node's network together: the first node is the lab's bridge, every other hangs on it by a veth pair."""
    address = node.plan.address
    if node is first:
        # The default route leads nowhere; without one Kubernetes cannot tell the node's own address.
        node.script(
            f"ip link add eth0 type bridge; ip addr add {address}/24 dev eth0; ip link set eth0 up\n"
            "ip route add default via 10.200.0.254"
        )
        return
    if node.holder is None or first.holder is None:
        raise LabError("a node's network is made after its namespaces")
    peer = f"veth{node.plan.index}"
    ends = ["netns", str(first.holder.pid), "type", "veth", "peer", "name", "eth0", "netns", str(node.holder.pid)]
    subprocess.run(["ip", "link", "add", peer, *ends], check=True)
    first.script(f"ip link set {peer} master eth0 up")
    node.script(
        f"ip addr add {address}/24 dev eth0; ip link set eth0 up; ip route add default via {first.plan.address}"
    )
    for other in (first, *others):
        other.script(f"ip route add {node.plan.pod_range} via {address}")
        node.script(f"ip route add {other.plan.pod_range} via {other.plan.address}")


def _folders_script(lab: Path, folder: Path, name: str, resolver: str) -> str:
    """Return the script that gives a node its own /run, /var/log and /var/lib, and its host name.

    kubelet has paths below /var/lib/kubelet built in; /var/lib is covered by an overlay, so that not even an empty
    folder appears on the machine. The lab's folder is shown through the overlay in case it lies below /var/lib.
    """
    here, log, resolved = shlex.quote(str(lab)), shlex.quote(f"{folder}/var-log"), shlex.quote(resolver)
    return f"""
hostname {name}
mount --bind {here} /mnt
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lab /run/var-lib/upper /run/var-lib/work
mount --move /mnt /run/lab
mount -t overlay -o lowerdir=/var/lib,upperdir=/run/var-lib/upper,workdir=/run/var-lib/work overlay /var/lib
mkdir -p {here}; mount --bind /run/lab {here}
mkdir -p /var/lib/kubelet /var/lib/containerd {ENGINE_ENVIRONMENT} {MODELS_IN_POD}
mount -t tmpfs -o mode=755 tmpfs /var/lib/kubelet
mount -t tmpfs -o mode=711 tmpfs /var/lib/containerd
mount --bind {log} /var/log
case {resolved} in /run/*) mkdir -p "$(dirname {resolved})"; touch {resolved} ;; esac
mount --bind {shlex.quote(f"{folder}/etc/resolv.conf")} {resolved}
mount --make-rshared /
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables
"""
