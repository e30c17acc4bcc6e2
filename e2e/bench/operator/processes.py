"""Operator processes of the benchmark: each under an account of its own, measured, its writes told by the audit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from duplex_lab import processes
from duplex_lab.control_plane import ControlPlane
from duplex_lab.paths import REPOSITORY

SYSTEM: Final = "duplex-system"
_WRITES: Final = frozenset({"create", "update", "patch", "delete"})
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class StuckError(Exception):
    """Something that the benchmark waits for did not come."""


def wait_for(probe: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait until `probe` is true; return the seconds that it took."""
    began = time.monotonic()
    while not probe():
        if time.monotonic() - began > seconds:
            raise StuckError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - began


def account(cluster: ControlPlane, name: str) -> Path:
    """Make a service account with all rights and return a kubeconfig of it: the audit tells its requests apart."""
    cluster.kubectl("-n", SYSTEM, "create", "serviceaccount", name)
    binding = ("create", "clusterrolebinding", name, "--clusterrole=cluster-admin")
    cluster.kubectl(*binding, f"--serviceaccount={SYSTEM}:{name}")
    token = cluster.kubectl("-n", SYSTEM, "create", "token", name, "--duration=24h").stdout.strip()
    document: dict[str, Any] = yaml.safe_load(cluster.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    path = cluster.folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


@dataclass
class Operator:
    """One operator process. `name` is its account's."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, cluster: ControlPlane, name: str, kubeconfig: Path, port: int) -> Operator:
        """Start one."""
        command: list[str | Path] = [
            REPOSITORY / ".venv/bin/duplex-operator",
            "run",
            "--router-image=duplex.local/router:dev",
            "--connector-image=duplex.local/connector:dev",
            f"--lease-namespace={SYSTEM}",
            f"--kubeconfig={kubeconfig}",
            f"--health-port={port}",
            "--log-level=warning",
        ]
        return cls(name, port, processes.start(command, cluster.log(name), dies_with_us=True))

    def _ask(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:  # not yet, or not ready
            return ""

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples; nothing where the process does not answer yet."""
        samples = re.findall(rf"^duplex_operator_{name}(?:{{.*}})? (\S+)$", self._ask("metrics"), re.MULTILINE)
        return sum(map(float, samples))

    def ready(self) -> bool:
        """Tell whether it is ready, as the leader or as the one that stands by."""
        return bool(self._ask("readyz"))

    def leads(self) -> bool:
        """Tell whether it is the leader."""
        return self.metric("leader") == 1

    def steady(self, servings: int) -> bool:
        """Tell whether it has looked at all servings, and none waits."""
        return self.leads() and self.metric("reconciles_total") >= servings and self.metric("queue_depth") == 0

    def cpu_seconds(self) -> float:
        """Return the CPU time that it has used, user and system."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICKS

    def peak_mb(self) -> float:
        """Return the most memory that it has had resident, in MB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB", text, re.MULTILINE)
        return int(found[1]) / 1024 if found else 0.0

    def stop(self) -> None:
        """End it in order."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


class Kept:
    """An operator that is started again whenever it has ended, as a kubelet would do it."""

    def __init__(self, start: Callable[[], Operator]) -> None:
        self.restarts = 0
        self.operator = start()
        self._start = start

    def tend(self) -> None:
        """Start it again if it has ended."""
        if self.operator.process.poll() is not None:
            self.restarts += 1
            self.operator = self._start()


@dataclass(frozen=True)
class Write:
    """A request of an operator that changes something, leases left aside. `at`: when it came (RFC 3339, UTC)."""

    who: str
    at: str
    what: str


def writes(cluster: ControlPlane) -> Iterator[Write]:
    """Yield all that operators wrote, from the audit log."""
    prefix = f"system:serviceaccount:{SYSTEM}:"
    for line in cluster.audit_log.read_text().splitlines():
        entry = json.loads(line)
        target = entry.get("objectRef") or {}
        user = entry["user"]["username"]
        if entry["verb"] in _WRITES and user.startswith(prefix) and target.get("resource") not in {"leases", ""}:
            what = f"{entry['verb']} {target.get('resource')} {target.get('namespace', '')}/{target.get('name', '')}"
            yield Write(user.removeprefix(prefix), entry["requestReceivedTimestamp"], what)
