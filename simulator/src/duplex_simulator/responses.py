"""`/v1/responses`: the request as a chat, the answer as items and named events (vLLM 0.33, openai/responses/*)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from duplex_connector.contract import Params

from .answer import Answer, call_id, event
from .body import ApiError, Asked
from .calls import Call
from .logprobs import entries
from .pieces import Piece
from .tokenizer import Tokenizer

_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_LOGPROBS = "message.output_text.logprobs"


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat request that a responses request amounts to. Raises ApiError."""
    if body.get("previous_response_id") is not None:
        message = f"Response with id '{body['previous_response_id']}' not found."
        raise ApiError(message, status=404, kind="invalid_request_error", param="response_id")
    if body.get("background") and body.get("store", True):
        raise ApiError("This vLLM engine does not support `store=True`.", param="background")
    chat = {name: value for name, value in body.items() if name not in {"input", "instructions", "tools"}}
    chat["messages"] = _messages(body)
    chat["max_tokens"] = body.get("max_output_tokens")
    tools = body.get("tools") or []
    if tools:
        chat["tools"] = [{"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in tools]
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    chat["logprobs"] = _LOGPROBS in (body.get("include") or [])
    chat["top_logprobs"] = body.get("top_logprobs") if chat["logprobs"] else None
    chat.pop("stream_options", None)
    return chat


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = body.get("input")
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise ApiError("input must be a string or a list of items", param="input")
    for item in given:
        _add(messages, item)
    return messages


def _add(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    """Add an item; calls, text and reasoning of one reply become one message."""
    kind = item.get("type")
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind in _CALLS:
        call = {"name": item.get("name"), "arguments": item.get("arguments", item.get("input", ""))}
        if last is None:
            last = {"role": "assistant", "content": ""}
            messages.append(last)
        last.setdefault("tool_calls", []).append({"id": item.get("call_id"), "type": "function", "function": call})
    elif kind in _OUTPUTS:
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
    elif kind == "reasoning":
        return
    elif "role" in item:
        messages.append({"role": item["role"], "content": _text(item.get("content"))})
    else:
        raise ApiError(f"Unsupported input item type: {kind}", param="input")


def _text(content: object) -> object:
    if not isinstance(content, list):
        return content
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
        raise ApiError("this model takes text only", param="input")
    return [{"type": "text", "text": part["text"]} for part in content]


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"


class ResponsesAnswer(Answer):
    """See `Answer`. Streams open before the engine has answered, and number their events."""

    OPENS_EARLY: ClassVar = True

    def __init__(
        self,
        body: dict[str, Any],
        asked: Asked,
        request_id: str,
        tokenizer: Tokenizer,
        *,
        details: bool,
        streams_params: bool,
    ) -> None:
        super().__init__(body, asked, request_id, tokenizer, details=details, streams_params=streams_params)
        self._id = body.get("request_id") or _id("resp")
        self._created = int(time.time())
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        self._said = ""
        self._status = "completed"
        self._params: dict[str, Any] | None = None

    def _response(self, status: str, cached: int | None = None) -> dict[str, Any]:
        body, done = self.body, status != "in_progress"
        usage = self.usage(cached)
        shown = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached or 0},
            "output_tokens": self.tokens,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        return {
            "id": self._id,
            "created_at": self._created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "model": self.asked.model,
            "object": "response",
            "output": self._items if done else [],
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "temperature": body.get("temperature", 1.0),
            "tool_choice": body.get("tool_choice", "auto" if body.get("tools") else "none"),
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p", 1.0),
            "background": False,
            "max_output_tokens": self.asked.sampling.max_tokens,
            "previous_response_id": None,
            "reasoning": body.get("reasoning"),
            "service_tier": body.get("service_tier", "auto"),
            "status": status,
            "text": body.get("text"),
            "top_logprobs": self.asked.logprobs,
            "truncation": body.get("truncation", "disabled"),
            "usage": shown if done else None,
            "user": body.get("user"),
            Params.FIELD: self._params if done else None,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:  # noqa: ANN401 - JSON
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    def opening(self) -> bytes:
        """See `Answer`."""
        response = self._response("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def _place(self) -> dict[str, Any]:
        return {"output_index": len(self._items), "item_id": self._item["id"] if self._item else ""}

    def chunk(self, piece: Piece) -> bytes:
        """See `Answer`."""
        self.tokens += len(piece.token_ids)
        self._params = piece.params or self._params
        out = b""
        if piece.text:
            if self._item is None:
                out += self._open_message()
            self._said += piece.text
            count = self.asked.logprobs
            shown = entries(piece.token_ids, count, self.tokenizer) if count is not None else []
            out += self._event(
                "response.output_text.delta", **self._place(), content_index=0, delta=piece.text, logprobs=shown
            )
        for _, call in piece.calls:
            out += self._close_message("completed") + self._call(call)
        if piece.finish is not None:
            out += self._close_message("incomplete" if piece.finish == "length" else "completed")
            self._status = "incomplete" if piece.finish == "length" else "completed"
        return out

    def _message(self, status: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": "output_text", "text": self._said, "annotations": [], "logprobs": None}
        content = [part] if self._said else []
        identity = self._item["id"] if self._item else _id("msg")
        return {"id": identity, "type": "message", "role": "assistant", "content": content, "status": status}

    def _open_message(self) -> bytes:
        self._item = self._message("in_progress")
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        added = self._event("response.output_item.added", output_index=len(self._items), item=self._item)
        return added + self._event("response.content_part.added", **self._place(), content_index=0, part=part)

    def _close_message(self, status: str) -> bytes:
        if self._item is None:
            return b""
        item = self._message(status)
        out = self._event(
            "response.output_text.done", **self._place(), content_index=0, text=self._said, logprobs=[]
        ) + self._event("response.content_part.done", **self._place(), content_index=0, part=item["content"][0])
        out += self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._item, self._said = None, ""
        return out

    def _call(self, call: Call) -> bytes:
        item = {"type": "function_call", "id": _id("fc"), "call_id": call_id(), "name": call.name}
        self._item = {**item, "arguments": "", "status": "in_progress"}
        out = self._event("response.output_item.added", output_index=len(self._items), item=self._item)
        kind = "response.function_call_arguments"
        out += self._event(f"{kind}.delta", **self._place(), delta=call.arguments)
        out += self._event(f"{kind}.done", **self._place(), arguments=call.arguments, name=call.name)
        done = {**item, "arguments": call.arguments, "status": "completed"}
        out += self._event("response.output_item.done", output_index=len(self._items), item=done)
        self._items.append(done)
        self._item = None
        return out

    def closing(self, cached: int | None) -> bytes:
        """See `Answer`."""
        return self._event(f"response.{self._status}", response=self._response(self._status, cached))

    def whole(self, parts: list[Piece], cached: int | None) -> dict[str, Any]:
        """See `Answer`: what the stream's last event holds."""
        for part in parts:
            self.chunk(part)
        count = self.asked.logprobs
        if count is not None:
            ids = [token for part in parts for token in part.token_ids]
            for item in self._items:
                for content in item.get("content", []):
                    content["logprobs"] = entries(ids, count, self.tokenizer)
        return self._response(self._status, cached)
