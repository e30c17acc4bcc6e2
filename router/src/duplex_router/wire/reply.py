"""What an engine's answer says, read while it passes: the assistant's reply, the usage, the handle, and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from duplex_connector.contract import Params

from .errors import WireError
from .fields import NULL, Piece, Value, escaped, is_null, join_object, split_object
from .params import Handle, read_handle
from .scanner import Lane, lay_lane
from .shapes import Choice, Event, Usage, decode_event
from .splice import FINISHED_BY_ERROR, cut_at_end


def given(value: Value) -> bool:
    """Tell whether a field is not null."""
    return not is_null(value)


_FIELD: Final = Params.FIELD.encode()


_KEY: Final = b'"%b":' % _FIELD
_decode_text: Final = msgspec.json.Decoder(str).decode
DONE: Final = b"[DONE]"
_CONTENT_KEY: Final = b'"content":"'
_TEXT_KEY: Final = b'"text":"'


def cut_params(data: Piece) -> bytes:
    """Return an answer's JSON with its top-level kv_transfer_params replaced by null. Raises WireError."""
    fields: dict[str, Value] = dict(split_object(data))
    if Params.FIELD in fields:
        fields[Params.FIELD] = NULL
    return join_object(fields)


def _without(data: bytes, params: bytes) -> bytes:
    """Cut the top level's `params`: in place where their key stands but once, and so surely is the right one."""
    if data.count(_FIELD) == 1:
        before, found, after = data.partition(_KEY + params)
        if found:
            return b"%b%bnull%b" % (before, _KEY, after)
    return cut_params(data)


def may_hold_params(data: bytes) -> bool:
    """Tell whether bytes that are not a known answer name kv_transfer_params."""
    return _FIELD in data


@dataclass(slots=True)
class ToolCall:
    """A function call of a reply, with its arguments as the engine wrote them."""

    name: str = ""
    arguments: str = ""


class Reply:
    """The assistant's reply of a single-choice answer, gathered from whole or streamed messages."""

    __slots__ = ("_text", "tool_calls")

    def __init__(self) -> None:
        self._text: list[bytes] = []
        self.tool_calls: dict[int, ToolCall] = {}

    @property
    def escaped(self) -> bytes:
        """The reply's content as `fields.escaped` gives it."""
        text = self._text[0] if len(self._text) == 1 else b"".join(self._text)
        # What was taken as it stood in JSON may have been no UTF-8.
        return text if text.isascii() else text.decode("utf-8", "replace").encode()

    @property
    def text(self) -> str:
        """The reply's content; empty where there is none."""
        return _decode_text(b'"%b"' % self.escaped)

    def say(self, text: str) -> None:
        """Take text that follows what there is."""
        self._text.append(escaped(text))

    def say_escaped(self, text: bytes) -> None:
        """Take text as it stands in JSON, where it has no more escapes than it must have."""
        self._text.append(text)

    def lane(self, before: bytes, after: bytes, write: Callable[[bytes], object]) -> Lane:
        """Return a lane for chunks with these around their text: what it takes follows what there is."""
        return lay_lane(before, after, self._text, write)

    def add(self, choice: Choice) -> None:
        """Take a choice of an event or of a whole answer."""
        message = choice.delta or choice.message
        if message is None:
            if choice.text:
                self.say(choice.text)
            return
        if message.content:
            self.say(message.content)
        if message.tool_calls:
            streamed = message is choice.delta
            for position, part in enumerate(message.tool_calls):
                call = self.tool_calls.setdefault(part.index if streamed else position, ToolCall())
                if part.function is not None:
                    call.name += part.function.name or ""
                    call.arguments += part.function.arguments or ""


def _says_something(event: Event) -> bool:
    """Tell whether an event carries more than a role: only then has the engine got through its hand-off."""
    for choice in event.choices:
        delta = choice.delta
        if delta is None or choice.finish_reason is not None or delta.content or delta.tool_calls:
            return True
        if delta.reasoning or delta.reasoning_content:
            return True
    return not event.choices


class Observer:
    """Keeps what a turn needs of the answer that passes: the handle, the usage, the reply, whether it failed.

    `handle`: as it came; `held`: the same, read, where it could be read at once. `next_sequence`: the number of the
    next event, in a stream that numbers them. `ended`: the event has been seen after which a client knows that the
    stream says no more, although its last bytes may be on their way. `before` and `after`: what stands around an
    event's text, where the next may be equal but for that; both empty where none may.
    """

    __slots__ = (
        "after", "before", "ended", "failed", "handle", "held", "next_sequence", "reply", "spoke", "usage",
    )  # fmt: skip

    def __init__(self) -> None:
        self.handle: bytes | None = None
        self.held: Handle | None = None
        self.usage: Usage | None = None
        self.reply = Reply()
        self.failed = False
        self.spoke = False
        self.ended = False
        self.next_sequence = 0
        self.before = self.after = b""

    def see(self, data: bytes, start: int, stop: int) -> bytes | None:
        """Look at the JSON text between two offsets; return what the client may see instead, None: just that."""
        seen = data[start:stop]
        shown = self.pass_on(seen)
        return None if shown is seen else shown

    def pass_on(self, data: bytes) -> bytes:
        """Look at one JSON text of the answer and return it as the client may see it. Raises WireError."""
        if data == DONE:
            self.spoke = self.ended = True
            return data
        cut = cut_at_end(data)
        if cut is not None:
            shown, raw = cut
            if self._read_cut(shown, raw):
                return shown
        try:
            event = decode_event(data)
        except (msgspec.DecodeError, RecursionError):
            return self._pass_on_unknown(data)
        self._read(event)
        if not given(event.kv_transfer_params):
            self._learn(data, event)
            return data
        self.handle = bytes(event.kv_transfer_params)
        return _without(data, self.handle)

    def _read_cut(self, shown: bytes, raw: bytes) -> bool:
        """Read an event and the handle that was cut from its end; false where that was not the event's own."""
        try:
            event = decode_event(shown)
            held = read_handle(raw)
        except (msgspec.DecodeError, RecursionError, WireError):
            return False
        if given(event.kv_transfer_params):
            return False
        self._read(event)
        self.handle, self.held = raw, held
        return True

    def _read(self, event: Event) -> None:
        for choice in event.choices:
            self.reply.add(choice)
            if choice.finish_reason == FINISHED_BY_ERROR:  # in a 200, that is (smg#2382)
                self.failed = True
        if event.usage is not None:
            self.usage = event.usage
        if given(event.error):
            self.failed = True
        if not self.spoke:
            self.spoke = _says_something(event)

    def _learn(self, data: bytes, event: Event) -> None:
        """Keep what stands around an event's text, where that is all of it that would differ in another one's place."""
        if len(event.choices) != 1 or event.usage is not None:
            return
        choice = event.choices[0]
        delta = choice.delta
        if delta is None:
            text, key = choice.text, _TEXT_KEY
        elif delta.tool_calls:
            return
        else:
            text, key = delta.content, _CONTENT_KEY
        if not text:
            return
        # The key with its quotes and colon cannot stand within a string, where quotes are escaped.
        start = data.find(key) + len(key)
        if start < len(key) or data.find(key, start) >= 0:
            return
        said = text.encode("utf-8", "surrogatepass")
        if data.startswith(b'%b"' % said, start):
            self.before, self.after = data[:start], data[start + len(said) :]

    def _pass_on_unknown(self, data: bytes) -> bytes:
        """Pass on what is not an event as known here, but never an engine's handle within it."""
        self.spoke = True
        self.ended = self.ended or data == DONE
        if data == DONE or not may_hold_params(data):
            return data
        try:
            return cut_params(data)
        except WireError as error:
            raise WireError("an engine's kv_transfer_params stand where they cannot be cut out") from error
