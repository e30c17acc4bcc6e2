"""The relay carries both directions, any number of connections, and the end of each direction by itself."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from duplex_lab import relay


@contextlib.asynccontextmanager
async def relayed(handler: object) -> AsyncIterator[int]:
    """Give the port of a relay that leads to a server with this handler."""
    far = await asyncio.start_server(handler, "127.0.0.1", 0)  # type: ignore[arg-type]
    listener = relay.listening()
    running = asyncio.create_task(relay.serve(listener, *far.sockets[0].getsockname()))
    try:
        yield listener.getsockname()[1]
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        far.close()


async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer all that was said in capitals, but only once the other side has ended."""
    writer.write((await reader.read()).upper())
    await writer.drain()
    writer.close()


async def ask(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_the_end_of_one_direction_leaves_the_other_open() -> None:
    async with relayed(upper) as port:
        assert await ask(port, b"hello") == b"HELLO"


async def test_connections_do_not_mix_and_large_ones_pass() -> None:
    async with relayed(upper) as port:
        texts = [bytes([97 + index]) * 1_000_000 for index in range(8)]
        assert await asyncio.gather(*(ask(port, text) for text in texts)) == [text.upper() for text in texts]


async def test_nothing_listening_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        target = unused.getsockname()
    listener = relay.listening()
    running = asyncio.create_task(relay.serve(listener, *target))
    assert await ask(listener.getsockname()[1], b"hello") == b""
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
