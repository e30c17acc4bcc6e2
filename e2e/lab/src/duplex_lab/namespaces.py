"""Processes that belong to one lab, found by a mark in their environment, and how to enter the namespaces they hold.

The mark is the lab's folder in DUPLEX_LAB. It needs no record that a crash could lose, and a reused pid cannot bear it.
Only holders of namespaces, relays, and programs that the user runs in the lab's network are marked: what runs inside a
node ends with its holder, which is PID 1 of the node's pid namespace (pid_namespaces(7)).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from duplex_lab import processes
from duplex_lab.errors import LabError
from duplex_lab.processes import ProcessIdentity

_LAB: Final = "DUPLEX_LAB"
_PART: Final = "DUPLEX_LAB_PART"


def marked_environment(lab: Path, part: str) -> dict[str, str]:
    """Return our environment with the mark of a lab and what the process is in it."""
    return {**os.environ, _LAB: str(lab), _PART: part}


def marked_processes(lab: Path) -> Iterator[tuple[str, ProcessIdentity]]:
    """Yield (part, identity) of every living process that bears the lab's mark."""
    wanted = f"{_LAB}={lab}"
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            identity = ProcessIdentity.of(int(entry.name))
            variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except (OSError, LabError):
            continue  # it ended while we looked
        if wanted in variables and identity.alive():
            part = next((each.partition("=")[2] for each in variables if each.startswith(f"{_PART}=")), "")
            yield part, identity


def end_marked_processes(lab: Path) -> int:
    """Kill every process that bears the lab's mark; returns how many there were. Nodes end with their holders."""
    ended = [identity for _, identity in marked_processes(lab)]
    for identity in ended:
        identity.send(signal.SIGKILL)
    for identity in ended:
        if not processes.wait_until(lambda: not identity.alive(), 20):  # noqa: B023 - called before the next turn
            raise LabError(f"process {identity.pid} of {lab} does not end: see `cat /proc/{identity.pid}/stack`")
    return len(ended)


def start_holder(lab: Path, part: str, pause: Path, log: Path) -> ProcessIdentity:
    """Start a process that holds new mount, network, pid, host name and IPC namespaces; returns its identity."""
    words = ["unshare", "-m", "-n", "-p", "-u", "-i", "-f", "--mount-proc", "--propagation", "private"]
    # unshare stays, marked too, as the holder's parent: only the holder may be found under the part's name.
    words += ["env", f"{_PART}={part}", str(pause)]
    parent = processes.start(words, log, environment=marked_environment(lab, f"{part}-parent"))
    identity = ProcessIdentity.of(processes.only_child(parent.pid))

    def holds() -> bool:  # once pause itself runs, unshare has mounted /proc and is done
        return Path(f"/proc/{identity.pid}/exe").resolve().name == pause.resolve().name

    if not processes.wait_until(lambda: not identity.alive() or holds(), 10) or not identity.alive():
        raise LabError(f"cannot make namespaces: {processes.last_lines(log)}")
    return identity


def enter(holder: ProcessIdentity) -> tuple[str, ...]:
    """Return the command prefix that runs a program inside all namespaces of a holder; it forks once."""
    return ("nsenter", "-t", str(holder.pid), "-m", "-n", "-p", "-u", "-i", "--wdns=/")


def enter_network(pid: int, resolver: Path) -> tuple[str, ...]:
    """Return the prefix that runs a program of this machine in the network of a process, with that network's DNS.

    Only the network is the other process's. The program keeps this machine's files and pid namespace, so nothing
    forks and its pid is the one the caller sees. The resolver's file covers /etc/resolv.conf for this program alone.
    """
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    real = os.path.realpath("/etc/resolv.conf")
    network = f"--net=/proc/{pid}/ns/net"
    return ("nsenter", network, "unshare", "-m", "sh", "-c", script, "sh", str(resolver), real)


def with_prefix(prefix: Sequence[str], command: Sequence[str | Path]) -> list[str]:
    """Return one argument list of a prefix and a command."""
    return [*prefix, *map(str, command)]
