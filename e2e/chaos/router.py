"""One router under test: the real command."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .account import Sample
from .loopback import HOST, free_port

STOP_SECONDS = 90


@dataclass(eq=False)
class Router:
    """`turns`: how many it has been sent; `memory`: what it took on the way."""

    name: str
    log: Path
    port: int = field(default_factory=free_port)
    admin: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    memory: list[Sample] = field(default_factory=list)
    turns: int = 0

    def start(self, options: Sequence[str]) -> None:
        """Begin."""
        command = [str(Path(sys.executable).with_name("duplex-router")), "--pod-name", self.name, "--host", HOST]
        command += ["--port", str(self.port), "--admin-port", str(self.admin), *options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def alive(self) -> bool:
        """Tell whether it runs."""
        return self.process is not None and self.process.poll() is None

    def measure(self, seconds: float) -> None:
        """Note its resident memory, after so many seconds of load."""
        if not self.alive() or self.process is None:
            return
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                self.memory.append(Sample(seconds, self.turns, int(line.split()[1])))

    async def stop(self) -> int | None:
        """End it as Kubernetes does; return its exit status, None where it had to be killed."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self.process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None

    def kill(self) -> None:
        """End it at once, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
