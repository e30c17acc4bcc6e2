"""A process is known by more than its pid, and only that very process is ever signalled."""

import dataclasses
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duplex_lab import processes
from duplex_lab.errors import LabError
from duplex_lab.processes import ProcessIdentity, ProcessRecord


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_identity_survives_a_record(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    identity = ProcessIdentity.of(sleeper.pid)
    record = ProcessRecord(tmp_path / "folder" / "processes.json")
    record.add("sleeper", identity)
    assert ProcessRecord(tmp_path / "folder" / "processes.json").read() == {"sleeper": identity}
    record.clear()
    assert record.read() == {}


@pytest.mark.parametrize("change", [{"started": 1}, {"boot": "an earlier boot"}])
def test_a_reused_pid_is_never_signalled(sleeper: subprocess.Popen[bytes], change: dict[str, Any]) -> None:
    earlier = dataclasses.replace(ProcessIdentity.of(sleeper.pid), **change)
    assert not earlier.alive()
    assert not earlier.send(signal.SIGKILL)
    processes.stop(earlier)
    assert sleeper.poll() is None


def test_stop_ends_the_process_and_is_content_with_a_gone_one(sleeper: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(sleeper.pid)
    processes.stop(identity)
    assert not identity.alive()
    assert sleeper.wait() == -signal.SIGTERM
    processes.stop(identity)


def test_stop_kills_what_ignores_sigterm(tmp_path: Path) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    log = tmp_path / "deaf.log"
    process = processes.start([sys.executable, "-c", program], log)
    assert processes.wait_until(lambda: "deaf" in log.read_text(), 30)
    processes.stop(ProcessIdentity.of(process.pid), grace_seconds=0.2)
    assert process.wait() == -signal.SIGKILL


def test_a_process_whose_threads_outlive_its_first_one_counts_as_running(tmp_path: Path) -> None:
    """As a killed one does for a moment: its sockets still listen."""
    program = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start();"
        "print('leaves', flush=True); ctypes.CDLL(None).pthread_exit(None)"
    )
    log = tmp_path / "threads.log"
    process = processes.start([sys.executable, "-c", program], log)
    identity = ProcessIdentity.of(process.pid)
    assert processes.wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().split(") ")[1][0] == "Z", 30)
    assert identity.alive()
    process.kill()
    assert processes.wait_until(lambda: not identity.alive(), 10)
    process.wait()


def test_a_zombie_counts_as_ended() -> None:
    process = subprocess.Popen(["true"])
    identity = ProcessIdentity.of(process.pid)
    assert processes.wait_until(lambda: not identity.alive(), 10)
    assert Path(f"/proc/{process.pid}").exists()
    process.wait()


def test_identity_of_nothing_is_an_error() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(LabError, match="ended"):
        ProcessIdentity.of(process.pid)


def test_a_damaged_record_reads_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "processes.json"
    path.write_text('{"etcd": {"pid": 1')
    assert ProcessRecord(path).read() == {}


def test_dies_with_us_ends_with_a_killed_parent(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    program = (
        "import pathlib, sys, time; from duplex_lab import processes\n"
        "p = processes.start(['sleep', '600'], pathlib.Path(sys.argv[1] + '.log'), dies_with_us=True)\n"
        "time.sleep(0.3)\n"
        "pathlib.Path(sys.argv[1]).write_text(str(p.pid)); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(pids)])
    assert processes.wait_until(lambda: pids.exists() and pids.read_text() != "", 30)
    child = ProcessIdentity.of(int(pids.read_text()))
    parent.kill()
    parent.wait()
    assert processes.wait_until(lambda: not child.alive(), 10)


def test_only_child_finds_the_process_behind_a_forking_prefix() -> None:
    parent = subprocess.Popen(["sh", "-c", "sleep 600 & wait"])
    child = ProcessIdentity.of(processes.only_child(parent.pid))
    assert Path(f"/proc/{child.pid}/stat").read_text().split()[3] == str(parent.pid)
    processes.stop(child)
    parent.wait()
