"""A real Redis or Valkey server for tests, which they kill, freeze and start anew on the same port."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hiredis

from duplex_lab.progress import Progress
from duplex_lab.store_server import StoreProgram, ensure_store_program

from .rig import free_port, until


@dataclass
class StoreServer:
    """One server process."""

    program: StoreProgram
    folder: Path
    options: list[str] = field(default_factory=list)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        address = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        self.process = subprocess.Popen(
            [str(self.program.server), *address, *self.options],
            env=self.program.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)

    async def say(self, *command: str | bytes) -> Any:
        """Run one command on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        parser = hiredis.Reader()
        writer.write(hiredis.pack_command(command))  # type: ignore[arg-type]  # its stub names a tuple of one
        reply = False
        while reply is False:
            data = await asyncio.wait_for(reader.read(65536), 5)
            assert data, "the store closed the connection"
            parser.feed(data)
            reply = parser.gets()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return reply

    async def ready(self) -> None:
        def answers() -> bool:
            with contextlib.suppress(OSError, AssertionError):
                return asyncio.run(self.say("PING")) is not None  # an error is an answer
            return False

        await until(answers)


@contextlib.asynccontextmanager
async def store_server(tmp_path: Path, *options: str) -> AsyncIterator[StoreServer]:
    """Run a server until the block ends."""
    server = StoreServer(ensure_store_program(Progress()), tmp_path, list(options))
    server.start()
    try:
        await server.ready()
        yield server
    finally:
        server.kill()
