"""The content of a request as a chain of digests, so that a later request that shares a beginning is recognised.

Equal JSON gives equal digests, however it was serialised. Digests are only a hint of what is worth offering to a
guarded engine, which proves the tokens itself; they need not withstand attack.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import xxhash

from duplex_router.wire.fields import Fields
from duplex_router.wire.reply import Reply

TOKEN_STRIDE = 64
TEXT_STRIDE = 256
ID_BYTES = 4
_QUOTE = ord('"')
_ROLE_AND_CONTENT = {"role", "content"}

_decode_text = msgspec.json.Decoder(str).decode
canonical = msgspec.json.Encoder(order="deterministic").encode


class History(Protocol):
    """One request's content. `marks`: the chain's digest after each part; `whole` and `length` name all of it."""

    marks: list[bytes]
    whole: bytes
    length: int

    def begins_with(self, whole: bytes, length: int) -> bool:
        """Tell whether the first `length` of this history are all of the history that `whole` and `length` name."""
        ...

    def replied_with(self, length: int, reply: bytes) -> bool:
        """Tell whether the engine's reply of digest `reply` follows the first `length` of this history."""
        ...

    def tokens_at(self, depth: int) -> int | None:
        """Return how many tokens the first `depth` marks cover, where the content itself says so."""
        ...

    def boundary(self, prompt_tokens: int) -> tuple[tuple[int, int], ...]:
        """Return (marks, tokens) of its end, where a template keeps tokens from running across it."""
        ...


class Conversation:
    """A history of chat messages: one mark a message, `length` in messages."""

    __slots__ = ("_messages", "length", "marks", "whole")

    def __init__(self, messages: list[Fields], seed: bytes) -> None:
        self._messages = messages
        self.marks: list[bytes] = []
        last = seed
        for message in messages:
            last = xxhash.xxh3_128_digest(last + self.message_bytes(message))
            self.marks.append(last)
        self.whole = last
        self.length = len(messages)

    def begins_with(self, whole: bytes, length: int) -> bool:
        """See `History`."""
        return 0 < length <= self.length and self.marks[length - 1] == whole

    def replied_with(self, length: int, reply: bytes) -> bool:
        """See `History`."""
        return length < self.length and self.sent_reply(self._messages[length:]) == reply

    @staticmethod
    def message_bytes(message: Fields) -> bytes:
        """Return a message in one canonical form. The usual kind, role and text, needs no decoding into objects."""
        content = message.get("content")
        if content is not None and message.keys() == _ROLE_AND_CONTENT and memoryview(content)[0] == _QUOTE:
            return b"t" + _decode_text(message["role"]).encode() + b"\0" + utf8(_decode_text(content))
        return b"j" + canonical({name: msgspec.json.decode(value) for name, value in message.items()})

    @staticmethod
    def sent_reply(messages: list[Fields]) -> bytes:
        """Return the digest of the reply with which `messages`, not empty, begin; empty where they begin with none."""
        return _sent_reply_digest(messages[0])

    def tokens_at(self, depth: int) -> int | None:  # noqa: ARG002 - only a template knows
        """See `History`."""
        return None

    def boundary(self, prompt_tokens: int) -> tuple[tuple[int, int], ...]:
        """See `History`."""
        return ((len(self.marks), prompt_tokens),) if prompt_tokens else ()


class PlainPrompt:
    """A history of text or of token ids: one mark a stride, `length` in bytes or tokens."""

    __slots__ = ("_data", "_seed", "_stride", "_unit", "length", "marks", "whole")

    def __init__(self, data: bytes, seed: bytes, *, stride: int, unit: int) -> None:
        self._data, self._seed, self._stride, self._unit = data, seed, stride, unit
        self.length = len(data) // unit
        self.marks: list[bytes] = []
        state = xxhash.xxh3_128(seed)
        step = stride * unit
        for start in range(0, len(data) // step * step, step):
            state.update(data[start : start + step])
            self.marks.append(state.digest())
        self.whole = self._digest(self.length)

    def _digest(self, length: int) -> bytes:
        return xxhash.xxh3_128_digest(b"whole" + self._seed + self._data[: length * self._unit])

    def begins_with(self, whole: bytes, length: int) -> bool:
        """See `History`."""
        return length <= self.length and self._digest(length) == whole

    def replied_with(self, length: int, reply: bytes) -> bool:  # noqa: ARG002 - a continued text shows no seams
        """See `History`."""
        return False

    def tokens_at(self, depth: int) -> int | None:
        """See `History`."""
        return depth * self._stride if self._unit == ID_BYTES else None

    def boundary(self, prompt_tokens: int) -> tuple[tuple[int, int], ...]:  # noqa: ARG002 - text may join at its end
        """See `History`."""
        return ()


def utf8(text: str) -> bytes:
    """Return text as bytes; JSON allows halves of surrogate pairs, which have no UTF-8."""
    return text.encode("utf-8", "surrogatepass")


class _SentCall(msgspec.Struct):
    function: dict[str, str] | None = None


class _SentMessage(msgspec.Struct):
    """An assistant's message as clients send it back: text or text parts, and tool calls."""

    role: str
    content: str | list[dict[str, object]] | None = None
    tool_calls: list[_SentCall] | None = None


def _sent_reply_digest(message: Fields) -> bytes:
    if bytes(message.get("role", b"")) != b'"assistant"':
        return b""
    try:
        sent = msgspec.convert({name: msgspec.json.decode(value) for name, value in message.items()}, _SentMessage)
    except (msgspec.DecodeError, RecursionError):
        return b""
    content = sent.content or ""
    text = content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)
    functions = [call.function or {} for call in sent.tool_calls or []]
    return digest_of_reply(text, [(each.get("name", ""), each.get("arguments", "")) for each in functions])


def reply_digest(reply: Reply) -> bytes:
    """Return the digest of an engine's reply, equal to that of the message in which a client sends it back.

    Reasoning and call ids do not count: clients leave them out or change them, and the digest only chooses among
    handles of one and the same prompt.
    """
    calls = [(call.name, call.arguments) for _, call in sorted(reply.tool_calls.items())]
    return digest_of_reply(reply.text, calls)


def digest_of_reply(text: str, calls: list[tuple[str, str]]) -> bytes:
    """Return the digest of a reply's text and its calls, each a name and its arguments."""
    return xxhash.xxh3_128_digest(canonical([text, calls]))
