"""One client's connection: requests in, in order; answers out. A state machine over RFC 9112's messages."""

from __future__ import annotations

import asyncio
import logging
import math
from enum import Enum, auto
from http import HTTPStatus
from typing import Protocol

from duplex_router.turn.core import JSON_TYPE
from duplex_router.wire.api_errors import error_body
from duplex_router.wire.body import BodyReader
from duplex_router.wire.errors import RequestError, WireError
from duplex_router.wire.heads import (
    HEAD_END,
    MAX_HEAD_BYTES,
    Headers,
    RequestHead,
    parse_request_head,
    render_head,
    status_line,
)

from .settings import ServerSettings

log = logging.getLogger(__name__)

MAX_PIPELINED_BYTES = 64 * 1024
WRITE_HIGH_WATER = 256 * 1024
LINGER_SECONDS = 2.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Work(Protocol):
    """What answers a request: told when the client leaves, or takes what is written slower or faster."""

    def client_gone(self) -> None:
        """End without a client."""
        ...

    def pause(self) -> None:
        """Produce no more for now."""
        ...

    def resume(self) -> None:
        """Produce on."""
        ...


class Application(Protocol):
    """What serves requests."""

    settings: ServerSettings
    connections: set[ClientConnection]

    def clock(self) -> float:
        """Return the time."""
        ...

    def accepts(self, head: RequestHead) -> None:
        """Check a request before its body is read. Raises RequestError."""
        ...

    def serve(self, head: RequestHead, body: bytes, client: ClientConnection) -> Work | None:
        """Answer a request through `client`, now or later. Raises RequestError. None: it has been answered."""
        ...


class State(Enum):
    """Where a connection is."""

    HEAD = auto()
    BODY = auto()
    BUSY = auto()
    CLOSED = auto()


class ClientConnection(asyncio.Protocol):
    """See `Client` for how answers are given."""

    __slots__ = (
        "_app", "_body_ends", "_buffer", "_dechunk", "_head", "_keep_alive", "_parts", "_reader", "_reading_paused",
        "_size", "_state", "_transport", "_work", "_write_paused", "deadline",
    )  # fmt: skip

    def __init__(self, app: Application) -> None:
        self._app = app
        self._transport: asyncio.Transport | None = None
        self._state = State.HEAD
        self._buffer = b""
        self._head: RequestHead | None = None
        self._reader: BodyReader | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._body_ends = math.inf
        self._work: Work | None = None
        self._keep_alive = True
        self._reading_paused = False
        self._write_paused = False
        self._dechunk: BodyReader | None = None
        self.deadline = math.inf

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = transport  # type: ignore[assignment]  # of a TCP connection
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)  # type: ignore[attr-defined]  # the same
        self._app.connections.add(self)
        self.deadline = self._app.clock() + self._app.settings.idle_seconds

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._state is State.CLOSED:
            return
        if self._state is State.BUSY:
            self._buffer += data
            if len(self._buffer) > MAX_PIPELINED_BYTES and self._transport is not None:
                self._reading_paused = True
                self._transport.pause_reading()
            return
        try:
            self._take(data)
        except RequestError as error:
            self._refuse(error)
        except Exception:
            log.exception("a request could not be served")
            message = "The router failed to serve this request."
            self._refuse(RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, message, close=True))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it was lost makes no difference
        """See asyncio."""
        self._app.connections.discard(self)
        self._state = State.CLOSED
        work, self._work = self._work, None
        if work is not None:
            work.client_gone()

    def pause_writing(self) -> None:
        """See asyncio: the client does not keep up, so the engine must wait."""
        self._write_paused = True
        self.deadline = self._app.clock() + self._app.settings.write_silence_seconds
        if self._work is not None:
            self._work.pause()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._write_paused = False
        if self._state is State.BUSY:
            self.deadline = math.inf
        if self._work is not None:
            self._work.resume()

    # -- requests

    def _take(self, data: bytes) -> None:
        """Take what belongs to the present request; what follows it waits in the buffer until that is answered."""
        if self._state is State.HEAD:
            data, self._buffer = self._buffer + data, b""
            data = self._take_head(data)
        if self._state is not State.BODY or self._reader is None:
            return
        self._take_body(self._reader, data)
        if self._reader.done:
            self._buffer = self._reader.surplus
            self._serve()

    def _take_head(self, data: bytes) -> bytes:
        """Parse a head if it is complete and return what follows it; an incomplete one is kept."""
        if data[:2] == b"\r\n":
            data = data.lstrip(b"\r\n")  # empty lines before a request are ignored (2.2)
        if not data:
            return b""
        end = data.find(HEAD_END)
        if end > MAX_HEAD_BYTES or (end < 0 and len(data) > MAX_HEAD_BYTES):
            message = f"The request head must be at most {MAX_HEAD_BYTES} bytes."
            raise RequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message, close=True)
        if end < 0:
            self._buffer = data
            self.deadline = min(self.deadline, self._app.clock() + self._app.settings.head_seconds)
            return b""
        self._buffer = data[end + len(HEAD_END) :]  # what is left if the request is refused
        self._start_request(parse_request_head(data[: end + len(HEAD_END)]))
        rest, self._buffer = self._buffer, b""
        return rest

    def _start_request(self, head: RequestHead) -> None:
        settings, now = self._app.settings, self._app.clock()
        self._head, self._keep_alive = head, head.keep_alive
        if head.length is not None and head.length > settings.max_body_bytes:
            raise self._too_large()
        try:
            self._app.accepts(head)
        except RequestError as error:
            error.close = error.close or head.length != 0  # its body has not been read
            raise
        self._state = State.BODY
        self._reader = BodyReader(length=head.length, chunked=head.length is None)
        self._parts, self._size = [], 0
        self._body_ends = now + settings.body_seconds
        self.deadline = now + settings.body_silence_seconds
        if head.expects_continue and self._transport is not None:
            self._transport.write(_CONTINUE)

    def _take_body(self, reader: BodyReader, data: bytes) -> None:
        if reader.done:
            reader.surplus = data
            return
        try:
            part = reader.feed(data)
        except WireError as error:
            raise RequestError(HTTPStatus.BAD_REQUEST, f"The body's framing is wrong: {error}.", close=True) from error
        if part:
            self._parts.append(part)
            self._size += len(part)
            self.deadline = min(self._app.clock() + self._app.settings.body_silence_seconds, self._body_ends)
        if self._size > self._app.settings.max_body_bytes:
            raise self._too_large()

    def _too_large(self) -> RequestError:
        message = f"The body must be at most {self._app.settings.max_body_bytes} bytes."
        return RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, close=True)

    def _serve(self) -> None:
        head, self._reader = self._head, None
        if head is None:
            return
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._state = State.BUSY
        self.deadline = math.inf
        work = self._app.serve(head, body, self)
        if self._state is State.BUSY:  # not answered yet
            self._work = work

    # -- answers

    def respond(self, status: int, headers: Headers, body: bytes, *, linger: bool = False) -> None:
        """See `Client`. `linger`: the request was not read to its end, and closing must not turn into a reset."""
        if self._transport is None or self._state is State.CLOSED:
            return
        length = (b"content-length", b"%d" % len(body))
        no_length = status == HTTPStatus.NO_CONTENT
        head = render_head(
            status_line(status), [*headers, *([] if no_length else [length]), *self._connection_header()]
        )
        bodiless = self._head is not None and self._head.method == b"HEAD"
        self._transport.write(head if bodiless else head + body)
        if linger:
            self._linger()
        else:
            self._finish_request()

    def start(self, status: int, headers: Headers) -> None:
        """See `Client`. A client that speaks HTTP/1.0 gets the body unframed, to the connection's end."""
        if self._transport is None or self._state is State.CLOSED:
            return
        if self._head is not None and self._head.version == b"1.0":
            self._keep_alive = False
            self._dechunk = BodyReader(length=None, chunked=True)
            framing = []
        else:
            framing = [(b"transfer-encoding", b"chunked")]
        self._transport.write(render_head(status_line(status), [*headers, *framing, *self._connection_header()]))

    def write(self, data: bytes) -> None:
        """See `Client`."""
        if self._transport is None or self._state is State.CLOSED:
            return
        self._transport.write(data if self._dechunk is None else self._dechunk.feed(data))
        if self._write_paused and self._work is not None:
            self._work.pause()

    def end(self) -> None:
        """See `Client`."""
        self._finish_request()

    def break_off(self) -> None:
        """See `Client`."""
        self._work = None
        self._close()

    def _connection_header(self) -> Headers:
        return () if self._keep_alive else ((b"connection", b"close"),)

    def _finish_request(self) -> None:
        self._work = None
        if not self._keep_alive:
            self._close()
            return
        self._state = State.HEAD
        self._head = None
        self.deadline = self._app.clock() + self._app.settings.idle_seconds
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()
        if self._buffer:
            # Not from here, where the caller is still within its own work: the next request starts on a clean stack.
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if self._state is State.HEAD and self._buffer:
            self.data_received(b"")

    def _refuse(self, error: RequestError) -> None:
        if error.close:
            self._keep_alive = False
        unread = error.close and self._state is not State.BUSY
        path = self._head.path if self._head is not None else b""
        body = error_body(error.status, error.message, param=error.param, path=path)
        self.respond(error.status, [JSON_TYPE, *error.headers], body, linger=unread)

    def _linger(self) -> None:
        """Close for writing, and drop what the client still sends until it has read the answer (RFC 9112, 9.6)."""
        self._state = State.CLOSED
        self._buffer = b""
        self.deadline = self._app.clock() + LINGER_SECONDS
        if self._transport is not None:
            self._transport.write_eof()

    def _close(self) -> None:
        self._state = State.CLOSED
        if self._transport is not None:
            self._transport.close()

    # -- the owner's side

    def check_deadline(self, now: float) -> None:
        """Close what is too slow: a client that does not finish its request is told so."""
        if now < self.deadline:
            return
        self.deadline = math.inf
        if self._state is State.BODY or (self._state is State.HEAD and self._buffer):
            self._refuse(RequestError(HTTPStatus.REQUEST_TIMEOUT, "The request did not arrive in time.", close=True))
        elif self._state is State.CLOSED or self._write_paused:
            if self._transport is not None:
                self._transport.abort()
        else:
            self._close()

    def close(self) -> None:
        """Close now."""
        self._close()

    def drain(self) -> None:
        """Take no further request; close once the present one is answered."""
        self._keep_alive = False
        if self._state is State.HEAD and not self._buffer:
            self._close()
