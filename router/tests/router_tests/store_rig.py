"""A real Redis or Valkey server for tests, which they kill, freeze and start anew on the same port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import hiredis

from duplex_lab.progress import Progress
from duplex_lab.store_server import StoreProcess, ensure_store_program

from .rig import free_port, until


class StoreServer(StoreProcess):
    """One server process that tests also talk to."""

    async def say(self, *command: str | bytes) -> Any:
        """Run one command on a connection of its own."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
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
    server = StoreServer(ensure_store_program(Progress()), tmp_path, "127.0.0.1", free_port(), list(options))
    server.start()
    try:
        await server.ready()
        yield server
    finally:
        server.kill()
