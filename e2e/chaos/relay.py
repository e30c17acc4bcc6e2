"""A TCP relay before an engine, whose connections can be cut all at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

from .loopback import HOST

_LINGER_ZERO = struct.pack("ii", 1, 0)
_CHUNK = 65536


class Relay:
    """Listens on a port of loopback that stays the same while its engine comes and goes."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def listen(self) -> None:
        """Listen, on the same port each time."""
        self._server = await asyncio.start_server(self._accept, HOST, self.port, backlog=1024)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def refuse(self) -> None:
        """Listen no more and cut what there is, as a host does whose process has died."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.reset()

    def reset(self) -> int:
        """Cut every connection with a reset, both ways; return how many there were."""
        writers = list(self._open)
        for writer in writers:
            sock = writer.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            writer.transport.abort()
        return len(writers) // 2

    async def close(self) -> None:
        """Stop listening and drop everything."""
        self.refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            engine_reader, engine_writer = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, engine_writer}
        try:
            # `close` cancels it, and the server would complain of a task that ends so.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(self._copy(reader, engine_writer), self._copy(engine_reader, writer))
        finally:
            for each in (writer, engine_writer):
                self._open.discard(each)
                each.transport.abort()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                writer.write(data)
                await writer.drain()
        # One side's end ends both: HTTP/1.1 between router and engine knows no half-closed connections.
        writer.close()
