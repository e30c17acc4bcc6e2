"""Processes that begin in milliseconds: forked from one that has imported the simulator already.

An engine that is killed comes back before its address is forgotten, however slow the machine imports.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from duplex_simulator import cli

STOP_SECONDS = 30.0

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([cli.__name__, __name__])


def _live(arguments: list[str], env: dict[str, str], log: str) -> None:
    """Be a simulated engine, in the forked process."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(env)
    sys.argv = ["duplex-simulator", *arguments]
    cli.main()


class SimulatorProcess:
    """One life of a simulated engine: `duplex-simulator ARGUMENTS`, its output appended to `log`."""

    def __init__(self, arguments: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._process = _CONTEXT.Process(target=_live, args=(list(arguments), dict(env or {}), str(log)), daemon=True)
        self._process.start()

    def alive(self) -> bool:
        """Tell whether it runs (or is frozen)."""
        return self._process.is_alive()

    def signal(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self._process.pid is not None and self.alive():
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self._process.join(STOP_SECONDS)
