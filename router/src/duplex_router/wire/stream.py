"""A streamed answer on its way to the client: bytes as they came, but for the one event that carries the handle.

The fast way walks the engine's own chunk framing and passes it on verbatim; only where an event crosses chunks, or has
to be changed, is it framed anew. What is not a whole event is kept back, so that nothing can slip out in two halves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .body import CRLF, LAST_CHUNK, MAX_SIZE_LINE, BodyReader, chunk, chunk_size
from .errors import WireError
from .heads import ResponseHead
from .reply import Observer
from .scanner import Lane, walk

EVENT_END: Final = b"\n\n"
_AFTER_EVENT: Final = len(EVENT_END + CRLF)
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
_DATA: Final = b"data: "


class StreamRelay:
    """Takes an engine's server-sent events in any pieces; gives them back framed in chunks for the client.

    `done`: the body is complete. `observer`: what was seen. Raises WireError on broken framing.
    """

    __slots__ = (
        "_after", "_before", "_carry", "_lane", "_learnt", "_partial", "_reader", "done", "observer", "surplus",
    )  # fmt: skip

    def __init__(self, head: ResponseHead, observer: Observer) -> None:
        self.observer = observer
        self.done = False
        self.surplus = b""
        self._carry = b""  # an incomplete chunk, or its first line
        self._partial = b""  # payload of whole chunks after the last whole event
        self._reader = None if head.chunked else BodyReader(length=head.length)
        self._before = self._after = b""  # what stands around the text of a chunk like the last one
        self._learnt = b""
        self._lane: Lane | None = None

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes of the body and return what the client may have of them."""
        if self.done:
            self.surplus += data
            return b""
        if self._reader is not None:
            payload = self._reader.feed(data)
            self.done, self.surplus = self._reader.done, self._reader.surplus
            return self._reframe(payload) + (self._finish() if self.done else b"")
        if self._carry:
            data, self._carry = self._carry + data, b""
        return self._feed_chunks(data)

    def lane(self, write: Callable[[bytes], object]) -> Lane | None:
        """Return what may take the next bytes in the place of `feed`; None: nothing may, for now.

        `write`: what passes bytes on to the client, always the same. Any call of `feed` puts an end to it.
        """
        if not self._after or self._carry or self._partial or self.done:
            return None
        if self._lane is None:
            self._lane = self.observer.reply.lane(self._before, self._after, write)
        return self._lane

    def end_of_connection(self) -> bytes | None:
        """Say that no more comes: the last bytes where that completes the body, None where it was cut off."""
        if self._reader is None or not self._reader.end_of_connection():
            return None
        self.done = True
        return self._finish()

    def _feed_chunks(self, data: bytes) -> bytes:  # noqa: C901, PLR0912 - runs per read, where each call counts
        """Take chunks: those of one whole event go on as they came, each changed or uneven one is framed anew."""
        out: list[bytes] = []
        kept = position = 0  # what lies between the two goes on as it came
        length = len(data)
        while position < length:
            if not self._partial:
                position, text, start, stop = walk(data, position, self._before, self._after)
                if text:
                    self.observer.reply.say_escaped(text)
                if start >= 0:
                    instead = self._see(data, start, stop)
                    if instead:
                        out += [data[kept:position], instead]
                        kept = stop + _AFTER_EVENT
                    position = stop + _AFTER_EVENT
                    continue
                if position >= length:
                    break
            if length - position == len(LAST_CHUNK) and data[position:] == LAST_CHUNK:
                out.append(data[kept:position])
                self.done = True
                out.append(self._finish())
                return b"".join(out)
            line_end = data.find(CRLF, position, position + MAX_SIZE_LINE)
            if line_end < 0:
                if length - position >= MAX_SIZE_LINE:
                    raise WireError("a chunk's first line is too long")
                break
            size = chunk_size(data[position:line_end])
            if size == 0:
                out.append(data[kept:position])
                kept = length
                self._end_of_chunks(data, position)
                if self.done:
                    out.append(self._finish())
                return b"".join(out)
            start = line_end + 2
            stop = start + size
            if stop + 2 > length:
                if size > MAX_EVENT_BYTES:
                    raise WireError("a chunk is too large")
                break
            if not data.startswith(CRLF, stop):
                raise WireError("a chunk does not end where its size says")
            out += [data[kept:position], self._reframe(data[start:stop])]
            position = kept = stop + 2
        if position < length:
            self._carry = data[position:]
        if not out:
            return data if position == length else data[:position]
        out.append(data[kept:position])
        return b"".join(out)

    def _see(self, data: bytes, start: int, stop: int) -> bytes:
        """Look at a chunk of one event, its data being between two offsets.

        Return the chunk that the client gets instead; empty: it gets it as it came.
        """
        observer = self.observer
        shown = observer.see(data, start, stop)
        if observer.before is not self._learnt:
            self._learnt = observer.before
            self._before, self._after = _DATA + observer.before, observer.after + EVENT_END
            self._lane = None
        return b"" if shown is None else chunk(b"".join((_DATA, shown, EVENT_END)))

    def _end_of_chunks(self, data: bytes, position: int) -> None:
        """Read the last chunk and its trailer, which starts at `position`."""
        last = BodyReader(length=None, chunked=True)
        last.feed(data[position:])
        self.done, self.surplus = last.done, last.surplus
        self._carry = b"" if last.done else data[position:]

    def _reframe(self, payload: bytes) -> bytes:
        payload = self._partial + payload if self._partial else payload
        cut = payload.rfind(EVENT_END) + len(EVENT_END) if EVENT_END in payload else 0
        self._partial = payload[cut:]
        if len(self._partial) > MAX_EVENT_BYTES:
            raise WireError("an event is too large")
        return chunk(self._look(payload[:cut])) if cut else b""

    def _finish(self) -> bytes:
        rest, self._partial = self._partial, b""
        return (chunk(self._look(rest)) if rest else b"") + LAST_CHUNK

    def _look(self, payload: bytes) -> bytes:
        """Show whole events to the observer; return the same object where the client may have them as they are."""
        events = payload.split(EVENT_END)
        shown_events = [self._look_at_lines(event) for event in events]
        return payload if shown_events == events else EVENT_END.join(shown_events)

    def _look_at_lines(self, event: bytes) -> bytes:
        if not event:
            return event
        if event.startswith(_DATA) and b"\n" not in event:
            return _DATA + self.observer.pass_on(event[6:])
        lines = event.split(b"\n")
        data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        seen = b"\n".join(data)
        shown = self.observer.pass_on(seen)
        if shown == seen:
            return event
        others = [line for line in lines if not line.startswith(b"data:")]
        return b"\n".join([*others, _DATA + shown])
