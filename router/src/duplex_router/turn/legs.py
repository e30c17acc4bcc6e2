"""What a turn needs of the network, as interfaces, and the leg that is read whole."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from http import HTTPStatus
from typing import Final, Protocol

from duplex_router.fleet.engines import Engine
from duplex_router.wire.body import BodyReader
from duplex_router.wire.errors import WireError
from duplex_router.wire.fields import Value
from duplex_router.wire.heads import ResponseHead
from duplex_router.wire.scanner import Lane


class Failure(StrEnum):
    """Why an exchange gave no whole answer."""

    UNREACHABLE = "unreachable"
    """No connection: the engine has seen nothing of the request."""
    LOST = "lost"
    """The connection ended before the answer did: what the engine did is not known."""
    TIMEOUT = "timeout"
    BROKEN = "broken"
    """The answer breaks HTTP, or is too large."""


class Exchange(Protocol):
    """One request to an engine, under way."""

    sent: bool
    """The request has been given to a connection: the engine may have seen it."""

    def abort(self) -> None:
        """Close its connection at once; the receiver hears no more. vLLM aborts the request on that."""
        ...

    def pause(self) -> None:
        """Read no more for now."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...

    def expect_by(self, seconds: float) -> None:
        """Set the deadline anew: the receiver hears of a timeout if nothing more comes within `seconds`."""
        ...

    def by(self, lane: Lane | None) -> None:
        """Have a lane take what it can of the next bytes; the receiver gets what it leaves. None: it gets all."""
        ...

    def finished(self, *, reusable: bool) -> None:
        """Say that the whole answer has been read; the connection goes back to the pool where it may."""
        ...


class Receiver(Protocol):
    """Who reads an answer. After `lost` nothing more is called."""

    def answered(self, head: ResponseHead) -> None:
        """Take the head."""
        ...

    def received(self, data: bytes) -> None:
        """Take bytes of the body, its framing included."""
        ...

    def lost(self, failure: Failure) -> None:
        """Learn that no more comes. With a body that ends with its connection this is also its proper end."""
        ...


class Transport(Protocol):
    """Sends requests to engines."""

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
    ) -> Exchange:
        """Send a request; the receiver is called after this has returned, never before.

        `headers`: header lines beside those that the transport writes itself (Host, Content-Length).
        `seconds`: the time until the answer's head, and then for each further piece of it. `repeatable`: it may be
        sent once more where a pooled connection turns out to be closed, although the engine may have seen it.
        """
        ...


class Answer:
    """A whole answer."""

    __slots__ = ("body", "head")

    def __init__(self, head: ResponseHead, body: bytes) -> None:
        self.head = head
        self.body = body

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.head.status


MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024

OK: Final = int(HTTPStatus.OK)
BAD_REQUEST: Final = int(HTTPStatus.BAD_REQUEST)
SERVER_ERROR: Final = int(HTTPStatus.INTERNAL_SERVER_ERROR)
"""As plain numbers, for what compares them each turn: an Enum's member costs a call."""


class WholeAnswer:
    """A receiver that gathers the whole answer and then calls `done` with it, or with the failure."""

    __slots__ = ("_done", "_head", "_parts", "_reader", "_size", "exchange")

    def __init__(self, done: Callable[[Answer | Failure], None]) -> None:
        self._done = done
        self._head: ResponseHead | None = None
        self._reader: BodyReader | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self.exchange: Exchange | None = None

    def answered(self, head: ResponseHead) -> None:
        """See `Receiver`."""
        self._head = head
        if head.length == 0 and not head.chunked:
            self._complete(head, b"", reusable=head.keep_alive)

    def received(self, data: bytes) -> None:
        """See `Receiver`."""
        head = self._head
        if head is None:
            return
        if self._reader is None:
            if head.length == len(data):  # all of it, as it mostly is
                self._complete(head, data, reusable=head.keep_alive)
                return
            self._reader = BodyReader(length=head.length, chunked=head.chunked)
        try:
            payload = self._reader.feed(data)
        except WireError:
            self._give_up()
            return
        self._parts.append(payload)
        self._size += len(payload)
        if self._size > MAX_ANSWER_BYTES:
            self._give_up()
        elif self._reader.done:
            self._complete(head, b"".join(self._parts), reusable=head.keep_alive and not self._reader.surplus)

    def lost(self, failure: Failure) -> None:
        """See `Receiver`."""
        head = self._head
        if failure is Failure.LOST and head is not None and head.length is None and not head.chunked:
            self._complete(head, b"".join(self._parts), reusable=False)
        else:
            self._done(failure)

    def _give_up(self) -> None:
        if self.exchange is not None:
            self.exchange.abort()
        self._done(Failure.BROKEN)

    def _complete(self, head: ResponseHead, body: bytes, *, reusable: bool) -> None:
        if self.exchange is not None:
            self.exchange.finished(reusable=reusable)
        self._done(Answer(head, body))
