"""A client's connection without sockets: bytes in, bytes out, and what was served of them."""

from __future__ import annotations

from typing import Any

from duplex_router.http.connection import ClientConnection
from duplex_router.http.settings import ServerSettings
from duplex_router.wire.fields import Piece
from duplex_router.wire.heads import RequestHead


class Wire:
    """A transport that keeps what is written, and has a peer that takes what it is said to."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = self.reading_paused = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close
    write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False


class Echo:
    """Answers each request with its body; keeps what it was asked."""

    def __init__(self, settings: ServerSettings | None = None) -> None:
        self.settings = settings or ServerSettings()
        self.connections: set[ClientConnection] = set()
        self.served: list[tuple[bytes, bytes, bytes]] = []
        self.now = 0.0
        self.holds: ClientConnection | None = None
        self.waits = False

    def clock(self) -> float:
        return self.now

    def accepts(self, head: RequestHead) -> None:
        pass

    def serve(self, head: RequestHead, body: Piece, client: ClientConnection) -> Any:
        self.served.append((head.method, head.path, bytes(body)))
        if self.waits:
            self.holds = client
        else:
            client.respond(200, [], bytes(body))


def connected(echo: Echo) -> tuple[ClientConnection, Wire]:
    connection, wire = ClientConnection(echo), Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]  # has what is used of one
    return connection, wire


def feed(connection: ClientConnection, data: bytes) -> None:
    """Give bytes as a transport does: as many at once as there is room for."""
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        assert size, "a transport cannot read into nothing"
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]
