"""What a `/v1/messages` answer says, read while it passes (vLLM 0.33.0, anthropic/protocol.py)."""

from __future__ import annotations

from typing import Final

import msgspec

from .fields import Value
from .reply import Observer, ToolCall, cut_params, given
from .shapes import MessageBlock, Usage, decode_message

_BEFORE_THE_FIRST_TOKEN: Final = frozenset({"message_start", "ping"})
_canonical: Final = msgspec.json.Encoder(order="deterministic").encode


def canonical_input(raw: Value) -> str:
    """Return a tool call's input in one form, however its JSON was written."""
    return _canonical(msgspec.json.decode(raw)).decode()


class MessagesObserver(Observer):
    """See `Observer`. Only whole answers carry a handle."""

    __slots__ = ()

    def pass_on(self, data: bytes) -> bytes:
        """See `Observer`."""
        try:
            answer = decode_message(data)
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

    def _take(self, block: MessageBlock) -> None:
        if block.type == "text":
            self.reply.say(block.text or "")
        elif block.type == "tool_use":
            calls = self.reply.tool_calls
            calls[len(calls)] = ToolCall(block.name or "", canonical_input(block.input))
