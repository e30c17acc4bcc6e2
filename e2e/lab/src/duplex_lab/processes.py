"""Processes that outlive the command that started them: known by pid and start time, stopped by nothing less.

A pid alone is not enough: after a crash or a reboot it may belong to somebody else. The kernel's start time of the
process (proc(5), /proc/PID/stat field 22) together with the boot id makes it unique.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from duplex_lab.errors import LabError

_POLL_SECONDS = 0.02

_children: list[subprocess.Popen[bytes]] = []
"""What `start` started and has not ended: subprocess warns of objects that are dropped before their processes end."""


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (state) on, None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, for as long as it lives: never equal to a later one that was given the same pid."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Identify the process that has this pid now; LabError when there is none."""
        fields = _stat_fields(pid)
        if fields is None:
            raise LabError(f"process {pid} ended as soon as it was started")
        return cls(pid, int(fields[19]), _boot_id())

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ProcessIdentity:
        """Read back what `record` wrote."""
        return cls(int(record["pid"]), int(record["started"]), str(record["boot"]))

    def record(self) -> dict[str, Any]:
        """Return a JSON object from which `from_record` makes an equal identity."""
        return asdict(self)

    def alive(self) -> bool:
        """Say whether this very process still runs; a zombie does not, unless threads of it do: they keep its files."""
        fields = _stat_fields(self.pid)
        if fields is None or int(fields[19]) != self.started or self.boot != _boot_id():
            return False
        return fields[0] not in "ZX" or int(fields[17]) > 1

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; False when it has ended.

        The pidfd is opened before the identity is checked, so a pid that is reused in between is never hit.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True


class ProcessRecord:
    """The named processes of one owner in a JSON file, in the order in which they were started."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, ProcessIdentity]:
        """Return what is recorded; nothing when the file is missing or a crash left it half-written."""
        try:
            records = json.loads(self._path.read_text())
            return {name: ProcessIdentity.from_record(record) for name, record in records.items()}
        except (OSError, ValueError, KeyError):
            return {}

    def add(self, name: str, identity: ProcessIdentity) -> None:
        """Record one process, in the place of an earlier one of that name; written whole or not at all."""
        identities = self.read() | {name: identity}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({key: value.record() for key, value in identities.items()}, indent=1))
        unfinished.replace(self._path)

    def clear(self) -> None:
        """Forget all."""
        self._path.unlink(missing_ok=True)


def stop(identity: ProcessIdentity, grace_seconds: float = 10.0) -> None:
    """End one process: SIGTERM, then SIGKILL once the grace is over; returns when it is gone."""
    if not identity.send(signal.SIGTERM):
        return
    if not wait_until(lambda: not identity.alive(), grace_seconds):
        identity.send(signal.SIGKILL)
        if not wait_until(lambda: not identity.alive(), grace_seconds):
            raise LabError(
                f"process {identity.pid} does not end, not even by SIGKILL: see `cat /proc/{identity.pid}/stack`"
            )


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll until the condition holds; False when the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def start(
    arguments: Sequence[str | Path],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    dies_with_us: bool = False,
    pass_fds: Iterable[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, its output added to log; it lives on after us unless dies_with_us.

    With dies_with_us the process also ends when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).
    """
    words = [str(word) for word in arguments]
    if dies_with_us:
        # setpriv is replaced by the program, and the kernel's parent-death signal stays: no orphan after a kill -9.
        words = ["setpriv", "--pdeathsig", "KILL", *words]
    log.parent.mkdir(parents=True, exist_ok=True)
    _children[:] = [child for child in _children if child.poll() is None]
    with log.open("ab") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=None if environment is None else dict(environment),
            pass_fds=tuple(pass_fds),
        )
    _children.append(process)
    return process


def only_child(pid: int, seconds: float = 5.0) -> int:
    """Return the pid of the one child of a process that forks once (unshare -f, nsenter -p), waiting for it."""
    children: list[str] = []

    def found() -> bool:
        with contextlib.suppress(OSError):
            children[:] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return bool(children)

    if not wait_until(found, seconds):
        raise LabError(f"process {pid} started no child within {seconds:.0f} s")
    return int(children[0])


def last_lines(log: Path, count: int = 12) -> str:
    """Return the end of a log, for error texts."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(lines[-count:])
