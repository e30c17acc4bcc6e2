"""One client's connection: requests in, in order; answers out. A state machine over RFC 9112's messages."""

from __future__ import annotations

import asyncio
import logging
import math
from http import HTTPStatus
from typing import Final, Protocol

from duplex_router.turn.core import JSON_TYPE
from duplex_router.wire.api_errors import error_body
from duplex_router.wire.body import CRLF, BodyReader
from duplex_router.wire.errors import RequestError, WireError
from duplex_router.wire.fields import Piece
from duplex_router.wire.heads import (
    HEAD_END,
    MAX_HEAD_BYTES,
    Headers,
    RequestHead,
    parse_request_head,
    render_fields,
    status_line,
)
from duplex_router.wire.scanner import copy_of, make_room

from .settings import ServerSettings

log = logging.getLogger(__name__)

MAX_UNREAD_BYTES: Final = 64 * 1024
FIRST_BODY_BYTES: Final = 64 * 1024
BODY_GROWTH: Final = 8
WRITE_HIGH_WATER: Final = 256 * 1024
LINGER_SECONDS: Final = 2.0
_ROOM: Final = bytearray(64 * 1024)
_SCRATCH: Final = memoryview(_ROOM)
"""What is read into, and copied from at once."""

LARGE_READ_BYTES: Final = 8 * 1024
"""From how many bytes on a body that came with its head is copied but once, to where it stays."""

_NOTHING: Final = bytearray()
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


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

    def serve(self, head: RequestHead, body: Piece, client: ClientConnection) -> Work | None:
        """Answer a request through `client`, now or later. Raises RequestError. None: it has been answered."""
        ...


class State:
    """Where a connection is."""

    HEAD: Final = 0
    BODY: Final = 1
    BUSY: Final = 2
    CLOSED: Final = 3


class ClientConnection(asyncio.BufferedProtocol):
    """See `Client` for how answers are given.

    Heads and chunked bodies are read by way of one buffer for all connections; a body of known length goes straight
    to where it stays.
    """

    __slots__ = (
        "_app", "_body", "_body_size", "_buffer", "_dechunk", "_ends", "_head", "_keep_alive", "_last_head",
        "_parts", "_reader", "_state", "_stream_head", "_transport", "_unread", "_work", "_write_paused", "deadline",
    )  # fmt: skip

    def __init__(self, app: Application) -> None:
        self._app = app
        self._transport: asyncio.Transport | None = None
        self._state: int = State.HEAD
        self._buffer = b""
        """An incomplete head."""
        self._head: RequestHead | None = None
        self._last_head: RequestHead | None = None
        self._body = _NOTHING
        """The body's memory, where its length is known and not all of it came with the head."""
        self._body_size = 0
        self._reader: BodyReader | None = None
        self._parts: list[bytes] = []
        self._ends = math.inf
        """When the body must be whole, or the closed connection gone."""
        self._unread = 0
        """Bytes of requests that came too early."""
        self._work: Work | None = None
        self._keep_alive = True
        self._write_paused = False
        self._dechunk: BodyReader | None = None
        self._stream_head = b""
        """A streamed answer's head, until its first part goes with it."""
        self.deadline = math.inf

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = transport  # type: ignore[assignment]  # of a TCP connection
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)  # type: ignore[attr-defined]  # the same
        self._app.connections.add(self)
        self.deadline = self._app.clock() + self._app.settings.idle_seconds

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - what is read has its own size
        """See asyncio."""
        return memoryview(self._body)[self._body_size :] if self._body else _SCRATCH

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._state == State.CLOSED:
            return
        try:
            if self._body:
                self._fill_body(nbytes)
            else:
                self._take_read(nbytes)
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
        if self._state == State.BUSY:
            self.deadline = math.inf
        if self._work is not None:
            self._work.resume()

    # -- requests

    def _take_read(self, size: int) -> None:
        """Take what has been read into the scratch memory."""
        if size >= LARGE_READ_BYTES and self._state == State.HEAD and not self._buffer:
            end = _ROOM.find(HEAD_END, 0, size) + len(HEAD_END)
            if len(HEAD_END) < end <= MAX_HEAD_BYTES and not _ROOM.startswith(CRLF):
                head = self._last_head = parse_request_head(copy_of(_ROOM, 0, end), self._last_head)
                self._start_request(head, _SCRATCH[end:size])
                return
        self._take(copy_of(_ROOM, 0, size))

    def _take(self, data: bytes) -> None:
        if self._state == State.HEAD:
            self._take_head(self._buffer + data if self._buffer else data)
        elif self._state == State.BODY:
            self._feed_body(data)
        else:
            self._drop(data)

    def _drop(self, data: bytes) -> None:
        """Refuse a request that comes before the last one's answer is complete.

        It is not read, and the connection closes after that answer, as clients that send requests in a row must expect
        (9.3.2). So nothing that was slipped in behind another's request is ever taken for one (11.2).
        """
        if not data.strip(b"\r\n"):
            return
        self._keep_alive = False
        self._unread += len(data)
        if self._unread > MAX_UNREAD_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def _take_head(self, data: bytes) -> None:
        """Parse a head if it is complete; an incomplete one is kept."""
        self._buffer = b""
        while data[:2] == CRLF:
            data = data[2:]  # empty lines before a request are ignored (2.2)
        if not data:
            return
        end = data.find(HEAD_END)
        if end > MAX_HEAD_BYTES or (end < 0 and len(data) > MAX_HEAD_BYTES):
            message = f"The request head must be at most {MAX_HEAD_BYTES} bytes."
            raise RequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message, close=True)
        if end < 0:
            self._buffer = data
            self.deadline = min(self.deadline, self._app.clock() + self._app.settings.head_seconds)
            return
        end += len(HEAD_END)
        head = self._last_head = parse_request_head(data[:end], self._last_head)
        self._start_request(head, data[end:])

    def _start_request(self, head: RequestHead, rest: bytes | memoryview) -> None:
        """Begin to read a body, of which `rest` came with the head; serve the request if that is all."""
        settings = self._app.settings
        self._head, self._keep_alive = head, self._keep_alive and head.keep_alive
        if head.length is not None and head.length > settings.max_body_bytes:
            raise self._too_large()
        try:
            self._app.accepts(head)
        except RequestError as error:
            error.close = error.close or head.length != 0  # its body has not been read
            raise
        if head.length is not None and head.length <= len(rest):
            if len(rest) > head.length:
                self._drop(bytes(rest[head.length :]))
                rest = rest[: head.length]
            self._serve(head, bytes(rest))
            return
        now = self._app.clock()
        self._state = State.BODY
        self._ends = now + settings.body_seconds
        self.deadline = now + settings.body_silence_seconds
        if head.expects_continue and self._transport is not None:
            self._transport.write(_CONTINUE)
        if head.length is None:
            self._reader, self._parts, self._body_size = BodyReader(length=None, chunked=True), [], 0
            self._feed_body(bytes(rest))
        else:
            self._make_room(head.length, rest)

    def _make_room(self, length: int, received: Piece) -> None:
        """Take memory for a body in steps: what a client announces costs nothing until it has sent some of it."""
        self._body_size = len(received)
        self._body = make_room(min(length, max(FIRST_BODY_BYTES, BODY_GROWTH * self._body_size)))
        memoryview(self._body)[: self._body_size] = received  # a bytearray would copy it twice

    def _fill_body(self, count: int) -> None:
        self._body_size += count
        head = self._head
        if head is None or head.length is None:
            return
        if self._body_size < head.length:
            self._expect_more_body()
            if self._body_size == len(self._body):
                self._make_room(head.length, self._body)
            return
        body, self._body = self._body, _NOTHING
        self._serve(head, body)

    def _feed_body(self, data: bytes) -> None:
        if self._reader is None or self._head is None or not data:
            return
        try:
            part = self._reader.feed(data)
        except WireError as error:
            raise RequestError(HTTPStatus.BAD_REQUEST, f"The body's framing is wrong: {error}.", close=True) from error
        self._parts.append(part)
        self._body_size += len(part)
        if self._body_size > self._app.settings.max_body_bytes:
            raise self._too_large()
        if not self._reader.done:
            self._expect_more_body()
            return
        self._drop(self._reader.surplus)
        body, self._parts, self._reader = b"".join(self._parts), [], None
        self._serve(self._head, body)

    def _expect_more_body(self) -> None:
        self.deadline = min(self._app.clock() + self._app.settings.body_silence_seconds, self._ends)

    def _too_large(self) -> RequestError:
        message = f"The body must be at most {self._app.settings.max_body_bytes} bytes."
        return RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, close=True)

    def _serve(self, head: RequestHead, body: Piece) -> None:
        self._state = State.BUSY
        self.deadline = math.inf
        work = self._app.serve(head, body, self)
        if self._state == State.BUSY:  # not answered yet
            self._work = work

    # -- answers

    def respond(self, status: int, headers: Headers, body: bytes, *, linger: bool = False) -> None:
        """See `Client`. `linger`: the request was not read to its end, and closing must not turn into a reset."""
        if self._transport is None or self._state == State.CLOSED:
            return
        length = b"" if status == HTTPStatus.NO_CONTENT else b"content-length: %d\r\n" % len(body)
        bodiless = self._head is not None and self._head.method == b"HEAD"
        self._transport.write(
            b"%b%b%b%b\r\n%b"
            % (status_line(status), render_fields(headers), length, self._closing(), b"" if bodiless else body)
        )
        if linger:
            self._linger()
        else:
            self._finish_request()

    def start(self, status: int, headers: Headers) -> None:
        """See `Client`. A client that speaks HTTP/1.0 gets the body unframed, to the connection's end."""
        if self._transport is None or self._state == State.CLOSED:
            return
        framing = b"transfer-encoding: chunked\r\n"
        if self._head is not None and self._head.version == b"1.0":
            self._keep_alive = False
            self._dechunk = BodyReader(length=None, chunked=True)
            framing = b""
        self._stream_head = b"".join((status_line(status), render_fields(headers), framing, self._closing(), CRLF))

    def write(self, data: bytes) -> None:
        """See `Client`."""
        if self._transport is None or self._state == State.CLOSED:
            return
        if self._dechunk is not None:
            data = self._dechunk.feed(data)
        if self._stream_head:
            data, self._stream_head = self._stream_head + data, b""
        self._transport.write(data)
        if self._write_paused and self._work is not None:
            self._work.pause()

    def end(self) -> None:
        """See `Client`."""
        self._finish_request()

    def break_off(self) -> None:
        """See `Client`."""
        self._work = None
        self._close()

    def _closing(self) -> bytes:
        return b"" if self._keep_alive else b"connection: close\r\n"

    def _finish_request(self) -> None:
        self._work = None
        if not self._keep_alive:
            if self._unread:
                self._linger()
            else:
                self._close()
            return
        self._state = State.HEAD
        self._head = None
        self.deadline = self._app.clock() + self._app.settings.idle_seconds

    def _refuse(self, error: RequestError) -> None:
        if error.close:
            self._keep_alive = False
        unread = error.close and self._state != State.BUSY
        path = self._head.path if self._head is not None else b""
        body = error_body(error.status, error.message, param=error.param, path=path)
        self.respond(error.status, [JSON_TYPE, *error.headers], body, linger=unread)

    def _linger(self) -> None:
        """Close for writing, and drop what the client still sends until it has read the answer (RFC 9112, 9.6)."""
        if self._transport is None or not self._transport.can_write_eof():  # TLS says goodbye by itself
            self._close()
            return
        self._state = State.CLOSED
        self._buffer, self._body, self._parts, self._reader = b"", _NOTHING, [], None
        now = self._app.clock()
        self.deadline, self._ends = now + LINGER_SECONDS, now + self._app.settings.write_silence_seconds
        if self._unread > MAX_UNREAD_BYTES:
            self._transport.resume_reading()
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
        if self._state == State.BODY or (self._state == State.HEAD and self._buffer):
            self._refuse(RequestError(HTTPStatus.REQUEST_TIMEOUT, "The request did not arrive in time.", close=True))
        elif self._state == State.CLOSED:
            self._end_lingering(now)
        elif self._write_paused and self._transport is not None:
            self._transport.abort()
        else:
            self._close()

    def _end_lingering(self, now: float) -> None:
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size() and now < self._ends:
            self.deadline = now + LINGER_SECONDS  # it still reads the answer
        else:
            self._transport.abort()

    def close(self) -> None:
        """Close now."""
        self._close()

    def drain(self) -> None:
        """Take no further request; close once the present one is answered."""
        self._keep_alive = False
        if self._state == State.HEAD and not self._buffer:
            self._close()
