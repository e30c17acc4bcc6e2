"""Connections to engines: pooled, each carrying one request at a time, with a deadline for every step."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import Callable
from typing import Any, Final

from duplex_router.fleet.engines import Engine
from duplex_router.turn.legs import OK, Failure, Receiver
from duplex_router.wire.errors import WireError
from duplex_router.wire.fields import Piece, Value
from duplex_router.wire.heads import HEAD_END, parse_response_head
from duplex_router.wire.scanner import Lane

from .credentials import Credentials

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 4.0
"""vLLM closes after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE): an older connection might be closed under a request."""

CONNECT_SECONDS: Final = 5.0
MAX_HEAD_BYTES: Final = 64 * 1024
JOIN_BELOW_BYTES: Final = 16 * 1024
_POST: Final = b"POST"
MAX_STARTS: Final = 32


def _joined(pieces: list[Value], size: int) -> list[Piece]:
    """Return the pieces of a message of some size, to be written: in one, but for large ones, which are not copied."""
    if size < JOIN_BELOW_BYTES:
        return [b"".join(pieces)]
    message: list[Piece] = []
    small: list[Value] = []
    for piece in pieces:
        if len(piece) < JOIN_BELOW_BYTES:
            small.append(piece)
        else:
            message += [b"".join(small), memoryview(piece)]
            small = []
    if small:
        message.append(b"".join(small))
    return message


class _Route:
    """What leads to one engine: its idle connections, and how requests to it begin, by path."""

    __slots__ = ("_address", "_key_line", "_starts", "idle")

    def __init__(self, address: bytes) -> None:
        self._address = address
        self._key_line = b""
        self._starts: dict[bytes, bytes] = {}
        self.idle: list[Connection] = []

    def start(self, method: bytes, path: bytes, key_line: bytes) -> bytes:
        """Return the first lines of a request."""
        if key_line is not self._key_line:
            self._key_line, self._starts = key_line, {}
        known = self._starts.get(path) if method == _POST else None
        if known is None:
            known = b"%b %b HTTP/1.1\r\nhost: %b\r\n%b" % (method, path, self._address, key_line)
            if method == _POST and len(self._starts) < MAX_STARTS:
                self._starts[path] = known
        return known


class UpstreamExchange:
    """See `Exchange`. `flows`: the head is complete; `heard`: something has come since the pool last looked."""

    __slots__ = (
        "_again", "_connection", "_engine", "_head", "_message", "_over", "_paused", "_pool", "_receiver", "_seconds",
        "deadline", "flows", "heard", "lane", "sent",
    )  # fmt: skip

    def __init__(
        self, pool: Pool, engine: Engine, message: list[Piece], receiver: Receiver, *, seconds: float, repeatable: bool
    ) -> None:
        self._pool, self._engine, self._message = pool, engine, message
        self._receiver: Receiver | None = receiver
        self._seconds = seconds
        self._again = repeatable
        self._connection: Connection | None = None
        self._head = b""
        """What came of the answer's head."""
        self._over = False
        self._paused = False
        self.deadline = pool.clock() + seconds
        self.flows = self.heard = self.sent = False
        self.lane: Lane | None = None

    def send_on(self, connection: Connection) -> None:
        """Use a connection for this exchange."""
        self._connection = connection
        connection.exchange = self
        self.sent = True
        connection.write(self._message)

    def connected(self, connection: Connection) -> None:
        """Take the connection that was opened for this exchange."""
        if self._over:
            connection.close()
            return
        self._again = False
        self.send_on(connection)

    def unreachable(self) -> None:
        """Learn that no connection could be opened."""
        self._fail(Failure.UNREACHABLE)

    def data(self, data: bytes) -> None:
        """Take bytes from the connection."""
        self.heard = True
        receiver = self._receiver
        if self.flows and receiver is not None:
            receiver.received(data)
            return
        self._again = False
        head = self._head + data if self._head else data
        end = head.find(HEAD_END)
        if end < 0:
            self._head = head
            if len(head) > MAX_HEAD_BYTES:
                self._break()
            return
        self._take_head(head[:end], head[end + len(HEAD_END) :])

    def _take_head(self, head: bytes, rest: bytes) -> None:
        try:
            answer = parse_response_head(head)
        except WireError:
            self._break()
            return
        if answer.status < OK:  # an interim answer: the final one follows (RFC 9110, 15.2)
            self._head = b""
            if rest:
                self.data(rest)
            return
        self.flows = True
        self._message = []
        receiver = self._receiver
        if receiver is None:
            return
        receiver.answered(answer)
        if rest and not self._over:
            receiver.received(rest)

    def still_waits(self, now: float) -> bool:
        """Tell whether the deadline has not passed; each piece of an answer sets it anew."""
        if self.heard:
            self.heard = False
            if not self._paused:
                self.deadline = now + self._seconds
        return now < self.deadline

    def connection_lost(self) -> None:
        """Learn that the connection is gone."""
        self._connection = None
        if self._over:
            return
        if self._again and not self._head:
            self._again = False
            self.sent = False
            self._pool.connect(self._engine, self)
            return
        self._fail(Failure.LOST)

    def timed_out(self) -> None:
        """Learn that the deadline has passed."""
        self._close_connection()
        self._fail(Failure.TIMEOUT)

    def _break(self) -> None:
        self._close_connection()
        self._fail(Failure.BROKEN)

    def _fail(self, failure: Failure) -> None:
        receiver = self._receiver
        self._end()
        if receiver is not None:
            receiver.lost(failure)

    def _end(self) -> None:
        """Let go of everything: exchange and receiver hold one another, and should not need the garbage collector."""
        self._over = True
        self._message, self._receiver = [], None
        self._pool.active.discard(self)

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.exchange = None
            connection.abort()

    def abort(self) -> None:
        """See `Exchange`."""
        self._end()
        self._close_connection()

    def pause(self) -> None:
        """See `Exchange`."""
        if not self._paused and self._connection is not None:
            self._paused = True
            self.deadline = math.inf
            self._connection.pause()

    def resume(self) -> None:
        """See `Exchange`."""
        if self._paused and self._connection is not None:
            self._paused = False
            self.deadline = self._pool.clock() + self._seconds
            self._connection.resume()

    def expect_by(self, seconds: float) -> None:
        """See `Exchange`."""
        self._seconds = seconds
        self.heard = True  # so that the pool sets the deadline when it next looks

    def by(self, lane: Lane | None) -> None:
        """See `Exchange`."""
        self.lane = lane

    def finished(self, *, reusable: bool) -> None:
        """See `Exchange`."""
        self._end()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.exchange = None
        if reusable and not self._paused:
            self._pool.keep(connection)
        else:
            connection.close()


class Connection(asyncio.Protocol):
    """One connection to an engine: under an exchange, or idle in the pool."""

    __slots__ = ("_idle", "_transport", "address", "exchange", "idle_since")

    def __init__(self, address: bytes, idle: list[Connection]) -> None:
        self.address = address
        self.exchange: UpstreamExchange | None = None
        self.idle_since = 0.0
        self._idle = idle
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = transport  # type: ignore[assignment]  # of a TCP connection

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        exchange = self.exchange
        if exchange is not None:
            lane = exchange.lane
            if lane is not None and lane(data):
                exchange.heard = True
            else:
                exchange.data(data)
        else:  # bytes that belong to no request: the connection's state is not known
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it was lost makes no difference
        """See asyncio."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.connection_lost()
        elif self in self._idle:
            self._idle.remove(self)

    def usable(self, now: float) -> bool:
        """Tell whether an idle connection may carry a request."""
        return self._transport is not None and not self._transport.is_closing() and now - self.idle_since < IDLE_SECONDS

    def write(self, message: list[Piece]) -> None:
        """Send a message."""
        if self._transport is None:
            return
        if len(message) == 1:
            self._transport.write(message[0])
        else:
            self._transport.writelines(message)

    def pause(self) -> None:
        """Read no more."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, dropping what is not sent yet."""
        if self._transport is not None:
            self._transport.abort()


class Pool:
    """The `Transport` over TCP. `tick` must be called a few times a second: it ends what is past its deadline."""

    def __init__(self, clock: Callable[[], float], credentials: Credentials) -> None:
        self.clock = clock
        self._credentials = credentials
        self.active: set[UpstreamExchange] = set()
        self._routes: dict[bytes, _Route] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False

    def request(
        self,
        engine: Engine,
        path: bytes,
        headers: bytes,
        body: list[Value],
        receiver: Receiver,
        *,
        seconds: float,
        repeatable: bool = True,
        method: bytes = b"POST",
    ) -> UpstreamExchange:
        """See `Transport`."""
        length = 0
        for piece in body:
            length += len(piece)
        key = self._credentials.engine_line
        route = self._route(engine.address)
        pieces: list[Value] = [route.start(method, path, key), headers, b"content-length: %d\r\n\r\n" % length]
        pieces += body
        message = _joined(pieces, length)
        exchange = UpstreamExchange(self, engine, message, receiver, seconds=seconds, repeatable=repeatable)
        self.active.add(exchange)
        idle, now = route.idle, self.clock()
        while idle:
            connection = idle.pop()  # the one used last: the others may grow old and go
            if connection.usable(now):
                exchange.send_on(connection)
                return exchange
            connection.close()
        self.connect(engine, exchange)
        return exchange

    def connect(self, engine: Engine, exchange: UpstreamExchange) -> None:
        """Open a connection for an exchange."""
        if self._closed:
            asyncio.get_running_loop().call_soon(exchange.unreachable)
            return
        task = asyncio.get_running_loop().create_task(self._connect(engine, exchange))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, engine: Engine, exchange: UpstreamExchange) -> None:
        idle = self._route(engine.address).idle
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    lambda: Connection(engine.address, idle), engine.host, engine.port, **self._tls(engine)
                )
        except ssl.SSLError as error:
            log.warning("no TLS with engine %s: %s", engine.address.decode(), error)
            exchange.unreachable()
        except (OSError, TimeoutError):
            exchange.unreachable()
        else:
            exchange.connected(connection)

    def _tls(self, engine: Engine) -> dict[str, Any]:
        settings = self._credentials.settings
        if not (engine.tls or settings.engine_tls):
            return {}
        return {"ssl": self._credentials.client, "server_hostname": settings.engine_name or engine.host}

    def keep(self, connection: Connection) -> None:
        """Put a connection back for the next request."""
        connection.idle_since = self.clock()
        self._route(connection.address).idle.append(connection)

    def _route(self, address: bytes) -> _Route:
        route = self._routes.get(address)
        if route is None:
            route = self._routes[address] = _Route(address)
        return route

    def tick(self) -> None:
        """End exchanges that are past their deadline, and close connections that have been idle for too long."""
        now = self.clock()
        for exchange in [each for each in self.active if not each.still_waits(now)]:
            exchange.timed_out()
        for route in self._routes.values():
            while route.idle and not route.idle[0].usable(now):
                route.idle.pop(0).close()
        for address in [address for address, route in self._routes.items() if not route.idle]:
            del self._routes[address]

    async def close(self) -> None:
        """Close everything; exchanges under way are lost, and new ones find nobody."""
        self._closed = True
        for task in list(self._connecting):
            task.cancel()
        for exchange in list(self.active):
            exchange.abort()
        for route in self._routes.values():
            for connection in route.idle:
                connection.close()
        await asyncio.gather(*self._connecting, return_exceptions=True)
