"""The content of a request as a chain of digests, so that a later request that shares a beginning is recognised.

Equal JSON gives equal digests, however it was serialised. The chain starts from everything else that decides the
rendered prompt: tenant, endpoint, model, tools, template arguments. Digests are only a hint of what is worth
offering to a guarded engine, which proves the tokens itself; they need not withstand attack.
"""

from __future__ import annotations

import array
from http import HTTPStatus
from typing import Protocol

import msgspec
import xxhash
from msgspec import Raw

from duplex_router.wire.errors import RequestError
from duplex_router.wire.fields import Fields
from duplex_router.wire.inference import Endpoint, Inference
from duplex_router.wire.reply import Reply

NEUTRAL_FIELDS = frozenset(
    {
        "messages",
        "prompt",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "length_penalty",
        "logit_bias",
        "stop_token_ids",
        "bad_words",
        "allowed_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "prompt_logprobs",
        "echo",
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "priority",
        "request_id",
        "session_id",
        "conversation_id",
        "parallel_tool_calls",
    }
)
"""Fields that change neither the prompt's tokens nor their KV. Whatever is not known here counts as deciding them."""

TOKEN_STRIDE = 64
TEXT_STRIDE = 256
_ID_BYTES = 4
_QUOTE = ord('"')
_ROLE_AND_CONTENT = {"role", "content"}

_decode_messages = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_ids = msgspec.json.Decoder(list[int]).decode
_canonical = msgspec.json.Encoder(order="deterministic").encode


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
    """A history of messages: one mark a message, `length` in messages."""

    __slots__ = ("_messages", "length", "marks", "whole")

    def __init__(self, messages: list[Fields], seed: bytes) -> None:
        self._messages = messages
        self.marks: list[bytes] = []
        last = seed
        for message in messages:
            last = xxhash.xxh3_128_digest(last + _message_bytes(message))
            self.marks.append(last)
        self.whole = last
        self.length = len(messages)

    def begins_with(self, whole: bytes, length: int) -> bool:
        """See `History`."""
        return 0 < length <= self.length and self.marks[length - 1] == whole

    def replied_with(self, length: int, reply: bytes) -> bool:
        """See `History`."""
        return length < self.length and _sent_reply_digest(self._messages[length]) == reply

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
        return depth * self._stride if self._unit == _ID_BYTES else None

    def boundary(self, prompt_tokens: int) -> tuple[tuple[int, int], ...]:  # noqa: ARG002 - text may join at its end
        """See `History`."""
        return ()


def read_history(request: Inference, tenant: bytes) -> History | None:
    """Return a request's history; None where its content is of no kind that can be followed.

    Raises RequestError where the field that should hold the content is missing or malformed, so that no engine need
    be asked.
    """
    name = "messages" if request.endpoint is Endpoint.CHAT else "prompt"
    raw = request.fields.get(name)
    if raw is None:
        if request.endpoint is Endpoint.COMPLETIONS and "prompt_embeds" in request.fields:
            return None
        raise RequestError(HTTPStatus.BAD_REQUEST, f"The field {name!r} is missing.", param=name)
    seed = _seed(request, tenant)
    try:
        return _messages(raw, seed) if name == "messages" else _prompt(raw, seed)
    except (msgspec.DecodeError, RecursionError, OverflowError) as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"The field {name!r} is malformed: {error}.", param=name) from error


def _seed(request: Inference, tenant: bytes) -> bytes:
    state = xxhash.xxh3_128(tenant)
    state.update(b"\0" + request.endpoint.encode())
    for name in sorted(request.fields.keys() - NEUTRAL_FIELDS):
        state.update(b"\0" + name.encode() + b"\0" + _canonical_json(request.fields[name]))
    return state.digest()


def _canonical_json(raw: Raw) -> bytes:
    return _canonical(msgspec.json.decode(raw))


def _messages(raw: Raw, seed: bytes) -> Conversation:
    messages = _decode_messages(raw)
    if not messages:
        raise msgspec.DecodeError("it is empty")
    return Conversation(messages, seed)


def _message_bytes(message: Fields) -> bytes:
    """Return a message in one canonical form. The usual kind, role and text, needs no decoding into objects."""
    content = message.get("content")
    if content is not None and message.keys() == _ROLE_AND_CONTENT and memoryview(content)[0] == _QUOTE:
        return b"t" + _decode_text(message["role"]).encode() + b"\0" + _utf8(_decode_text(content))
    return b"j" + _canonical({name: msgspec.json.decode(value) for name, value in message.items()})


def _utf8(text: str) -> bytes:
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
    return _reply(text, [(each.get("name", ""), each.get("arguments", "")) for each in functions])


def reply_digest(reply: Reply) -> bytes:
    """Return the digest of an engine's reply, equal to that of the message in which a client sends it back.

    Reasoning and call ids do not count: clients leave them out or change them, and the digest only chooses among
    handles of one and the same prompt.
    """
    calls = [(call.name, call.arguments) for _, call in sorted(reply.tool_calls.items())]
    return _reply(reply.text, calls)


def _reply(text: str, calls: list[tuple[str, str]]) -> bytes:
    return xxhash.xxh3_128_digest(_canonical([text, calls]))


def _prompt(raw: Raw, seed: bytes) -> PlainPrompt | None:
    start = bytes(memoryview(raw)[:64])
    if start[:1] == b'"':
        return PlainPrompt(_utf8(_decode_text(raw)), seed, stride=TEXT_STRIDE, unit=1)
    if start[:1] == b"[" and start[1:].lstrip()[:1] not in (b"[", b'"'):
        ids = array.array("I", _decode_ids(raw))
        return PlainPrompt(ids.tobytes(), seed, stride=TOKEN_STRIDE, unit=_ID_BYTES)
    return None
