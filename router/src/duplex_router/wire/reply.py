"""What an engine's answer says, read while it passes: the assistant's reply, the usage, the handle, and errors."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import Raw

from duplex_connector.contract import Params

from .errors import WireError
from .fields import NULL, Piece, Value, join_object, split_object
from .shapes import Choice, Event, Usage, decode_event

FINISHED_BY_ERROR = "error"


def given(value: Raw) -> bool:
    """Tell whether a field is not null, from its size alone: nothing else that engines write there has this length."""
    return len(value) != len(NULL)


_FIELD = Params.FIELD.encode()


_KEY = b'"%b":' % _FIELD
_NULL_SIZE = len(NULL)
_DONE = b"[DONE]"
_CONTENT_KEY = b'"content":"'
_TEXT_KEY = b'"text":"'


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
        self._text: list[str] = []
        self.tool_calls: dict[int, ToolCall] = {}

    @property
    def text(self) -> str:
        """The reply's content; empty where there is none."""
        return "".join(self._text)

    def say(self, text: str) -> None:
        """Take text that follows what there is."""
        self._text.append(text)

    def add(self, choice: Choice) -> None:
        """Take a choice of an event or of a whole answer."""
        message = choice.delta or choice.message
        if message is None:
            if choice.text:
                self._text.append(choice.text)
            return
        if message.content:
            self._text.append(message.content)
        if message.tool_calls:
            streamed = message is choice.delta
            for position, part in enumerate(message.tool_calls):
                call = self.tool_calls.setdefault(part.index if streamed else position, ToolCall())
                if part.function is not None:
                    call.name += part.function.name or ""
                    call.arguments += part.function.arguments or ""


class Observer:
    """Keeps what a turn needs of the answer that passes: the handle, the usage, the reply, whether it failed.

    `next_sequence`: the number of the next event, in a stream that numbers them. `ended`: the event has been seen after
    which a client knows that the stream says no more, although its last bytes may be on their way.
    """

    __slots__ = ("_after", "_before", "ended", "failed", "handle", "next_sequence", "reply", "spoke", "usage")

    def __init__(self) -> None:
        self.handle: bytes | None = None
        self.usage: Usage | None = None
        self.reply = Reply()
        self.failed = False
        self.spoke = False
        self.ended = False
        self.next_sequence = 0
        self._before = self._after = b""

    def pass_on(self, data: bytes) -> bytes:
        """Look at one JSON text of the answer and return it as the client may see it. Raises WireError."""
        if self._after and self._is_next_text(data):
            return data
        try:
            event = decode_event(data)
        except (msgspec.DecodeError, RecursionError):
            return self._pass_on_unknown(data)
        for choice in event.choices:
            self.reply.add(choice)
            if choice.finish_reason == FINISHED_BY_ERROR:  # in a 200, that is (smg#2382)
                self.failed = True
        if event.usage is not None:
            self.usage = event.usage
        if len(event.error) != _NULL_SIZE:
            self.failed = True
        if not self.spoke:
            self.spoke = event.says_something()
        if len(event.kv_transfer_params) == _NULL_SIZE:
            self._learn(data, event)
            return data
        self.handle = bytes(event.kv_transfer_params)
        return _without(data, self.handle)

    def _is_next_text(self, data: bytes) -> bool:
        """Take an event that is equal to one that was read, but for its text; say whether it is.

        What stands in place of the text has no quote and no escape, so that it is one string, as the former was: no
        field can have come or gone. Nearly all events of a stream are so, and this costs a tenth of reading them.
        """
        start, stop = len(self._before), len(data) - len(self._after)
        if stop < start or not data.startswith(self._before) or not data.endswith(self._after):
            return False
        text = data[start:stop]
        if b'"' in text or b"\\" in text:
            return False
        self.reply.say(text.decode("utf-8", "replace"))
        return True

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
        # The key with its quotes and colon cannot stand within a string, where quotes are escaped.
        if not text or data.count(key) != 1:
            return
        start, said = data.index(key) + len(key), text.encode("utf-8", "surrogatepass")
        if data.startswith(b'%b"' % said, start):
            self._before, self._after = data[:start], data[start + len(said) :]

    def _pass_on_unknown(self, data: bytes) -> bytes:
        """Pass on what is not an event as known here, such as `[DONE]`, but never an engine's handle within it."""
        self.spoke = True
        self.ended = self.ended or data == _DONE
        if data == _DONE or not may_hold_params(data):
            return data
        try:
            return cut_params(data)
        except WireError as error:
            raise WireError("an engine's kv_transfer_params stand where they cannot be cut out") from error
