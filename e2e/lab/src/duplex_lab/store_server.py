"""A real Redis or Valkey server for tests: the machine's own, else Debian's, unpacked into the cache folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from duplex_lab.errors import LabError
from duplex_lab.paths import cache_folder
from duplex_lab.progress import Progress

_ON_PATH: Final = ("valkey-server", "redis-server")
_PACKAGES: Final = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
"""Debian's server is a link into redis-tools; the libraries are those that a machine without it seldom has."""


@dataclass(frozen=True)
class StoreProgram:
    """The server's file, and the folder of libraries that it needs beside the machine's own."""

    server: Path
    libraries: Path | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment to start it in."""
        return {**os.environ, **({"LD_LIBRARY_PATH": str(self.libraries)} if self.libraries else {})}


@dataclass
class StoreProcess:
    """A server without persistence, which may be killed, frozen and started anew on the same port."""

    program: StoreProgram
    folder: Path
    host: str
    port: int
    options: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"redis://{self.host}:{self.port}"

    def start(self) -> None:
        """Begin a life, empty."""
        address = ["--bind", self.host, "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        self.process = subprocess.Popen(
            [str(self.program.server), *address, *self.options],
            env=self.program.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def signal(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once, frozen or not."""
        self.signal(signal.SIGCONT)
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


def ensure_store_program(progress: Progress) -> StoreProgram:
    """Return a server that runs here; LabError says what to install where none can be had."""
    for name in _ON_PATH:
        found = shutil.which(name)
        if found:
            return StoreProgram(Path(found))
    folder = cache_folder() / "redis"
    if not folder.is_dir():
        _unpack(folder, progress)
    libraries = next(folder.glob("usr/lib/*/liblzf.so.1"), None)
    program = StoreProgram(folder / "usr/bin/redis-server", libraries.parent if libraries else None)
    tried = subprocess.run(
        [program.server, "--version"], env=program.environment(), capture_output=True, text=True, check=False
    )
    if tried.returncode:
        raise LabError(f"Debian's redis-server does not run here; install valkey-server: {tried.stderr.strip()}")
    return program


def _unpack(folder: Path, progress: Progress) -> None:
    missing = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        raise LabError(f"no valkey-server or redis-server on PATH, and no {missing[0]} to fetch one: install it")
    progress.say("fetching redis-server")
    unfinished = folder.with_name(f"redis.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        done = _download(unfinished)
        if done.returncode:
            # A new machine has no package lists yet; these are its own, beside what is unpacked.
            done = _download(unfinished, own_lists=True)
        if done.returncode:
            raise LabError(f"redis-server cannot be fetched; install valkey-server: {done.stderr.strip()[-400:]}")
        for package in unfinished.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, unfinished], check=True)
            package.unlink()
        if not folder.is_dir():
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _download(folder: Path, *, own_lists: bool = False) -> subprocess.CompletedProcess[str]:
    """Fetch the packages into a folder, by the machine's package lists or by new ones below the folder."""
    options: list[str] = []
    if own_lists:
        state = folder / "apt"
        (state / "lists/partial").mkdir(parents=True)
        (state / "archives/partial").mkdir(parents=True)
        options = ["-o", f"Dir::State::lists={state / 'lists'}", "-o", f"Dir::Cache={state}"]
        subprocess.run(["apt-get", "update", "-q", *options], cwd=folder, capture_output=True, check=False)
    command = ["apt-get", "download", "-q", *options, *_PACKAGES]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    shutil.rmtree(folder / "apt", ignore_errors=True)
    return done
