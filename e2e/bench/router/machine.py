"""The machine while it measures: an own network namespace, one CPU for the router, real-time order, accounts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LOAD_CPU: Final = 0
ROUTER_CPU: Final = 1
_PRIORITY: Final = "5"
_INSIDE: Final = "DUPLEX_BENCH_INSIDE"
_CONGESTION: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")


class BenchError(Exception):
    """Something that the benchmark needs is missing. The message says what to do."""


def enter_namespace(module: str, arguments: Sequence[str]) -> None:
    """Start `python -m module` anew in a network namespace whose TCP is reno; return only where that has happened.

    Some defaults (BBR) pace small writes on loopback, which stalls everything alike and measures the kernel.
    """
    if os.environ.get(_INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        _CONGESTION.write_text("reno")
        return
    for program in ("unshare", "ip", "taskset", "chrt"):
        if shutil.which(program) is None:
            raise BenchError(f"`{program}` is missing (Debian: apt-get install util-linux iproute2)")
    if os.geteuid() != 0:
        raise BenchError("a network namespace and real-time order need root: run it with sudo")
    if len(os.sched_getaffinity(0)) <= max(LOAD_CPU, ROUTER_CPU):
        raise BenchError("two CPUs are needed: one for the router, one for load and engines")
    command = ["unshare", "--net", sys.executable, "-m", module, *arguments]
    os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})  # noqa: S606 - no shell on purpose


def on_cpu(cpu: int, command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` on one CPU, before everything that is not real-time."""
    return ["chrt", "-f", _PRIORITY, "taskset", "-c", str(cpu), *command]


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue  # it has ended meanwhile
    return list(dict.fromkeys(found))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process tree, user and system, by the scheduler's own clock."""
    total = 0
    for each in tree(pid):
        for task in Path(f"/proc/{each}/task").glob("*/schedstat"):
            try:
                total += int(task.read_text().split()[0])
            except OSError:
                continue  # it has ended meanwhile
    return total / 1e9


def memory_kb(pid: int) -> int:
    """Return the memory of a process tree in kB, shared pages by their share (PSS)."""
    total = 0
    for each in tree(pid):
        try:
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue  # it has ended meanwhile
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total


def description() -> dict[str, str | int]:
    """Return what the figures depend on."""
    model = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return {"kernel": os.uname().release, "cpu": model[0] if model else os.uname().machine, "cpus": os.cpu_count() or 0}
