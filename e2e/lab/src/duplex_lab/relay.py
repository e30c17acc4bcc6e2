"""Carry TCP connections from this machine's loopback into a lab's network.

A process of its own: its listening socket is made outside and inherited, then it runs inside the network namespace of
the lab, so what it accepts comes from outside and what it opens goes inside.

    python -m duplex_lab.relay LISTENING_DESCRIPTOR HOST PORT
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from typing import Final

_CHUNK: Final = 256 * 1024


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction until its end, and pass the end on."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def serve(listener: socket.socket, host: str, port: int) -> None:
    """Relay every connection of the listener to host:port, for ever."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(host, port)
            try:
                await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
            finally:
                far_writer.close()
        writer.close()

    server = await asyncio.start_server(relay, sock=listener)
    await server.serve_forever()


def listening(port: int = 0) -> socket.socket:
    """Return a listening socket on loopback; port 0 picks a free one."""
    return socket.create_server(("127.0.0.1", port), backlog=256)


if __name__ == "__main__":
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])))
