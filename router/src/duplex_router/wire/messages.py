"""What a `/v1/messages` answer says, read while it passes (vLLM 0.33.0, anthropic/protocol.py)."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from .fields import NULL
from .reply import Observer, ToolCall, Usage, cut_params, given

_BEFORE_THE_FIRST_TOKEN = frozenset({"message_start", "ping"})
_canonical = msgspec.json.Encoder(order="deterministic").encode


class _Block(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    name: str | None = None
    input: Raw = Raw(NULL)


class _Usage(msgspec.Struct):
    """`input_tokens` leaves out what came from a cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int | None = 0
    cache_creation_input_tokens: int | None = 0


class _Answer(msgspec.Struct):
    """A streamed event, or a whole message: they share no field but the type and the usage."""

    type: str = ""
    content: list[_Block] = []
    usage: _Usage | None = None
    kv_transfer_params: Raw = Raw(NULL)


_decode = msgspec.json.Decoder(_Answer).decode


def canonical_input(raw: Raw | bytes) -> str:
    """Return a tool call's input in one form, however its JSON was written."""
    return _canonical(msgspec.json.decode(raw)).decode()


class MessagesObserver(Observer):
    """See `Observer`. Only whole answers carry a handle."""

    __slots__ = ()

    def pass_on(self, data: bytes) -> bytes:
        """See `Observer`."""
        try:
            answer = _decode(data)
        except (msgspec.DecodeError, RecursionError):
            return self._pass_on_unknown(data)
        self.spoke = self.spoke or answer.type not in _BEFORE_THE_FIRST_TOKEN
        self.failed = self.failed or answer.type == "error"
        if answer.usage is not None:
            usage = answer.usage
            cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
            self.usage = Usage(usage.input_tokens + cached, usage.output_tokens)
        for block in answer.content:
            self._take(block)
        if not given(answer.kv_transfer_params):
            return data
        self.handle = bytes(answer.kv_transfer_params)
        return cut_params(data)

    def _take(self, block: _Block) -> None:
        if block.type == "text":
            self.reply.say(block.text or "")
        elif block.type == "tool_use":
            calls = self.reply.tool_calls
            calls[len(calls)] = ToolCall(block.name or "", canonical_input(block.input))
