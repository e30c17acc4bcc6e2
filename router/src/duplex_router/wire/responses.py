"""What a `/v1/responses` answer says, read while it passes (vLLM 0.33.0, openai/responses/protocol.py)."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from .fields import NULL, Fields, join_object, split_object
from .reply import Observer, ToolCall, Usage, cut_params, given

_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_BEFORE_THE_FIRST_TOKEN = frozenset({"response.created", "response.queued", "response.in_progress"})
_FAILED = frozenset({"failed", "cancelled"})


class _Part(msgspec.Struct):
    text: str | None = None


class _Item(msgspec.Struct):
    """An output item: a message with its parts, a function call, or what is not read here."""

    type: str = ""
    content: list[_Part] | None = None
    name: str | None = None
    arguments: str | None = None


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0


class _Response(msgspec.Struct):
    status: str = ""
    output: list[_Item] = []
    usage: _Usage | None = None
    error: Raw = Raw(NULL)
    kv_transfer_params: Raw = Raw(NULL)


class _Event(msgspec.Struct):
    """A streamed event; a whole answer has no type."""

    type: str = ""
    sequence_number: int = -1
    response: Raw = Raw(NULL)
    kv_transfer_params: Raw = Raw(NULL)


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class ResponsesObserver(Observer):
    """See `Observer`. Whole answers carry the handle at the top; streams within the response of their last event."""

    __slots__ = ()

    def pass_on(self, data: bytes) -> bytes:
        """See `Observer`."""
        try:
            event = _decode_event(data)
            if not event.type:
                return self._pass_on_response(data)
            self.next_sequence = event.sequence_number + 1
            self.spoke = self.spoke or event.type not in _BEFORE_THE_FIRST_TOKEN
            self.failed = self.failed or event.type == "error"
            self.ended = self.ended or event.type in _LAST_EVENTS
            if given(event.kv_transfer_params):
                data = cut_params(data)
            if not given(event.response):
                return data
            response = bytes(event.response)
            shown = self._pass_on_response(response)
        except (msgspec.DecodeError, RecursionError):
            return self._pass_on_unknown(data)
        if shown is response:
            return data
        fields: Fields = split_object(data)
        return join_object({**fields, "response": shown})

    def _pass_on_response(self, data: bytes) -> bytes:
        response = _decode_response(data)
        if response.usage is not None:
            self.usage = Usage(response.usage.input_tokens, response.usage.output_tokens)
        self.failed = self.failed or response.status in _FAILED or given(response.error)
        for item in response.output:
            self._take(item)
        if not given(response.kv_transfer_params):
            return data
        self.handle = bytes(response.kv_transfer_params)
        return cut_params(data)

    def _take(self, item: _Item) -> None:
        if item.type == "message":
            self.reply.say("".join([part.text or "" for part in item.content or ()]))
        elif item.type == "function_call":
            calls = self.reply.tool_calls
            calls[len(calls)] = ToolCall(item.name or "", item.arguments or "")
