"""What a `/v1/responses` answer says, read while it passes (vLLM 0.33.0, openai/responses/protocol.py)."""

from __future__ import annotations

from typing import Final

import msgspec

from .fields import Fields, join_object, split_object
from .reply import Observer, ToolCall, cut_params, given
from .shapes import ResponseItem, Usage, decode_response, decode_response_event

_LAST_EVENTS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_BEFORE_THE_FIRST_TOKEN: Final = frozenset({"response.created", "response.queued", "response.in_progress"})
_FAILED: Final = frozenset({"failed", "cancelled"})


class ResponsesObserver(Observer):
    """See `Observer`. Whole answers carry the handle at the top; streams within the response of their last event."""

    __slots__ = ()

    def pass_on(self, data: bytes) -> bytes:
        """See `Observer`."""
        try:
            event = decode_response_event(data)
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
        response = decode_response(data)
        if response.usage is not None:
            self.usage = Usage(response.usage.input_tokens, response.usage.output_tokens)
        self.failed = self.failed or response.status in _FAILED or given(response.error)
        for item in response.output:
            self._take(item)
        if not given(response.kv_transfer_params):
            return data
        self.handle = bytes(response.kv_transfer_params)
        return cut_params(data)

    def _take(self, item: ResponseItem) -> None:
        if item.type == "message":
            self.reply.say("".join([part.text or "" for part in item.content or ()]))
        elif item.type == "function_call":
            calls = self.reply.tool_calls
            calls[len(calls)] = ToolCall(item.name or "", item.arguments or "")
