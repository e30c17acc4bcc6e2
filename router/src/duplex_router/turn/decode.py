"""The decode leg: an engine's answer on its way to the client, held back until it is sure to be one."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, Protocol

from duplex_router.wire.api_errors import error_event
from duplex_router.wire.body import BodyReader, chunk
from duplex_router.wire.errors import WireError
from duplex_router.wire.events import EventObserver
from duplex_router.wire.heads import ResponseHead
from duplex_router.wire.inference import Endpoint
from duplex_router.wire.messages import MessagesObserver
from duplex_router.wire.reply import Observer
from duplex_router.wire.responses import ResponsesObserver
from duplex_router.wire.stream import StreamRelay

from .legs import BAD_REQUEST, MAX_ANSWER_BYTES, OK, SERVER_ERROR, Answer, Exchange, Failure

_RESPONSES: Final = Endpoint.RESPONSES
_MESSAGES: Final = Endpoint.MESSAGES


def observer_of(endpoint: Endpoint) -> Observer:
    """Return what reads an endpoint's answer."""
    if endpoint is _RESPONSES:
        return ResponsesObserver()
    return MessagesObserver() if endpoint is _MESSAGES else EventObserver()


class DecodeListener(Protocol):
    """Who runs the decode leg."""

    def decode_failed(self, failure: Failure | Answer) -> None:
        """Learn that the leg failed before the client got anything of it."""
        ...

    def decode_refused(self, answer: Answer) -> None:
        """Learn that the engine refused the request: a 4xx, which is the client's."""
        ...

    def decode_streams(self, head: ResponseHead) -> None:
        """Learn that a streamed answer begins; its parts follow."""
        ...

    def decode_part(self, data: bytes) -> None:
        """Take a part of the streamed answer, framed in chunks."""
        ...

    def decode_complete(self) -> None:
        """Learn that the client is about to see the end of a streamed answer; may come again until `decode_done`."""
        ...

    def decode_done(self, answer: Answer | None) -> None:
        """Learn that the leg is complete; `answer` is the whole answer, params cut, where it was not streamed."""
        ...

    def decode_broke(self, failure: Failure) -> None:
        """Learn that a stream broke off after the client had some of it."""
        ...


class DecodeLeg:
    """A `Receiver` for a decode leg.

    A streamed answer starts only once the engine has said more than a role: until then its hand-off may still fail,
    and both legs can be done again without the client seeing any of it.
    """

    __slots__ = (
        "_endpoint", "_head", "_held", "_listener", "_parts", "_reader", "_relay", "_silence", "_size",
        "_started", "exchange", "observer",
    )  # fmt: skip

    def __init__(self, listener: DecodeListener, endpoint: Endpoint, silence_seconds: float) -> None:
        self._listener = listener
        self._silence = silence_seconds
        self._endpoint = endpoint
        self._head: ResponseHead | None = None
        self._relay: StreamRelay | None = None
        self._reader: BodyReader | None = None
        self._parts: list[bytes] = []
        self._held: list[bytes] = []
        self._size = 0
        self._started = False
        self.observer = observer_of(endpoint)
        self.exchange: Exchange | None = None

    def broken_event(self, message: str) -> bytes:
        """Return the chunk that tells a client why its stream ends here."""
        path, sequence = self._endpoint.encode(), self.observer.next_sequence
        return chunk(error_event(HTTPStatus.BAD_GATEWAY, message, path=path, sequence=sequence))

    def answered(self, head: ResponseHead) -> None:
        """See `Receiver`."""
        self._head = head
        if head.status == OK and head.get(b"content-type").startswith(b"text/event-stream"):
            self._relay = StreamRelay(head, self.observer)
        else:
            self._reader = BodyReader(length=head.length, chunked=head.chunked)
            if self._reader.done:
                self._whole()

    def received(self, data: bytes) -> None:
        """See `Receiver`."""
        relay = self._relay
        try:
            if relay is not None:
                data = relay.feed(data)
                if self.observer.ended and not self.observer.failed:
                    self._listener.decode_complete()
                if self._started and not relay.done:
                    if data:
                        self._listener.decode_part(data)
                    if self.exchange is not None:
                        self.exchange.by(relay.lane(self._listener.decode_part))
                else:
                    self._stream(relay, data)
            elif self._reader is not None:
                self._gather(self._reader, data)
        except WireError:
            self._abort()
            self._fail(Failure.BROKEN)

    def lost(self, failure: Failure) -> None:
        """See `Receiver`."""
        if failure is Failure.LOST and self._relay is not None:
            rest = self._relay.end_of_connection()
            if rest is not None:
                self._stream(self._relay, rest)
                return
        if failure is Failure.LOST and self._reader is not None and self._reader.end_of_connection():
            self._whole()
            return
        self._fail(failure)

    def _gather(self, reader: BodyReader, data: bytes) -> None:
        part = reader.feed(data)
        self._parts.append(part)
        self._size += len(part)
        if self._size > MAX_ANSWER_BYTES:
            raise WireError("the answer is too large")
        if reader.done:
            self._whole()

    def _stream(self, relay: StreamRelay, data: bytes) -> None:
        if self._started:
            if data:
                self._listener.decode_part(data)
        elif self.observer.failed:
            self._abort()
            self._listener.decode_failed(Failure.BROKEN)
            return
        else:
            self._held.append(data)
            if self.observer.spoke or relay.done:
                self._start()
        if relay.done:
            self._finish(reusable=not relay.surplus)
            self._listener.decode_done(None)

    def _start(self) -> None:
        if self._head is None:
            return
        self._started = True
        if self.exchange is not None:
            self.exchange.expect_by(self._silence)
        self._listener.decode_streams(self._head)
        self._listener.decode_part(b"".join(self._held))
        self._held.clear()

    def _whole(self) -> None:
        if self._head is None:
            return
        self._finish(reusable=self._reader is not None and not self._reader.surplus)
        answer = Answer(self._head, b"".join(self._parts))
        if BAD_REQUEST <= answer.status < SERVER_ERROR:
            self._listener.decode_refused(answer)
        elif answer.status != OK:
            self._listener.decode_failed(answer)
        else:
            self._look(answer)

    def _look(self, answer: Answer) -> None:
        try:
            shown = self.observer.pass_on(answer.body)
        except WireError:
            self._listener.decode_failed(Failure.BROKEN)
            return
        if self.observer.failed:
            self._listener.decode_failed(Failure.BROKEN)
        else:
            self._listener.decode_done(Answer(answer.head, shown))

    def _finish(self, *, reusable: bool) -> None:
        if self.exchange is not None and self._head is not None:
            self.exchange.finished(reusable=reusable and self._head.keep_alive)

    def _abort(self) -> None:
        if self.exchange is not None:
            self.exchange.abort()

    def _fail(self, failure: Failure) -> None:
        if self._started:
            self._listener.decode_broke(failure)
        else:
            self._listener.decode_failed(failure)
