"""`/v1/messages`: the request as a chat, the answer as content blocks and named events (vLLM 0.33, anthropic/*)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from duplex_connector.contract import Params

from .answer import Answer, call_id, event
from .body import ApiError
from .pieces import Piece

_STAMP = "x-anthropic-billing-header"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """Return an error as vLLM translates it for Anthropic's clients."""
    kind = _TYPES.get(error.status) or ("api_error" if error.status >= 500 else "invalid_request_error")  # noqa: PLR2004 - HTTP
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def to_chat(body: Mapping[str, Any], *, counting: bool = False) -> dict[str, Any]:
    """Return the chat request that a messages request amounts to. Raises ApiError."""
    if not counting and (type(body.get("max_tokens")) is not int or body["max_tokens"] <= 0):
        raise ApiError("max_tokens must be positive", param="max_tokens")
    given = body.get("messages")
    if not isinstance(given, list) or not all(isinstance(message, dict) for message in given):
        raise ApiError("messages must be a list of objects", param="messages")
    dropped = {"system", "messages", "tools", "tool_choice", "stop_sequences", "stream_options"}
    chat = {name: value for name, value in body.items() if name not in dropped}
    chat["messages"] = _system(body.get("system"))
    for message in given:
        chat["messages"] += _converted(message)
    chat["stop"] = body.get("stop_sequences")
    if body.get("tools"):
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = _CHOICES.get(str(choice.get("type")), named)
        chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    return chat


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": function}


def _system(system: object) -> list[dict[str, Any]]:
    if isinstance(system, list):
        texts = [str(block.get("text") or "") for block in system if isinstance(block, Mapping)]
        system = "".join(text for text in texts if not text.startswith(_STAMP))
    return [{"role": "system", "content": system}] if system else []


def _converted(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise ApiError("content must be a string or a list of blocks", param="messages")
    before: list[dict[str, Any]] = []
    texts: list[str] = []
    calls = []
    for block in content:
        match block.get("type"):
            case "text":
                texts.append(block.get("text") or "")
            case "tool_use":
                function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case "tool_result":
                before.append(
                    {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _result(block.get("content"))}
                )
            case "thinking" | "redacted_thinking":
                pass
            case kind:
                raise ApiError(f"this model takes text only: {kind} is not simulated", param="messages")
    own: dict[str, Any] = {"role": role, "content": texts[0] if len(texts) == 1 else _parts(texts)}
    if calls:
        own["tool_calls"] = calls
    return [*before, own] if texts or calls else before


def _parts(texts: list[str]) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _result(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return str(content or "")


class MessagesAnswer(Answer):
    """See `Answer`. Streams never carry the params."""

    _open = ""
    _index = 0
    _ending: Piece | None = None
    _called = False

    def _usage(self, cached: int | None) -> dict[str, int]:
        usage = self.usage(cached)
        read = (usage["prompt_tokens_details"] or {}).get("cached_tokens")
        shown = {"input_tokens": usage["prompt_tokens"] - (read or 0), "output_tokens": self.tokens}
        return shown if read is None else {**shown, "cache_read_input_tokens": read}

    def _stop(self, last: Piece) -> dict[str, str | None]:
        if last.finish == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if self._called:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(last.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_reason}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def opening(self) -> bytes:
        """See `Answer`."""
        message = {
            "id": self._head["id"],
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.asked.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(None),
        }
        return event({"type": "message_start", "message": message}, "message_start")

    def _start(self, kind: str, block: dict[str, Any]) -> bytes:
        out = self._close()
        self._open = kind
        body = {"type": "content_block_start", "content_block": block, "index": self._index}
        return out + event(body, "content_block_start")

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event({"type": "content_block_delta", "delta": delta, "index": self._index}, "content_block_delta")

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open, index = "", self._index
        self._index += 1
        return event({"type": "content_block_stop", "index": index}, "content_block_stop")

    def chunk(self, piece: Piece) -> bytes:
        """See `Answer`."""
        self.tokens += len(piece.token_ids)
        out = b""
        if piece.text:
            if self._open != "text":
                out += self._start("text", {"type": "text", "text": ""})
            out += self._delta({"type": "text_delta", "text": piece.text})
        for _, call in piece.calls:
            self._called = True
            out += self._start("tool_use", {"type": "tool_use", "id": call_id(), "name": call.name, "input": {}})
            out += self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        if piece.finish is not None:
            self._ending = piece
        return out

    def closing(self, cached: int | None) -> bytes:
        """See `Answer`."""
        stop = self._stop(self._ending or Piece("", []))
        body = {"type": "message_delta", "delta": stop, "usage": self._usage(cached)}
        return self._close() + event(body, "message_delta") + event({"type": "message_stop"}, "message_stop")

    def whole(self, parts: list[Piece], cached: int | None) -> dict[str, Any]:
        """See `Answer`: vLLM leaves out what is null."""
        self.tokens = sum(len(part.token_ids) for part in parts)
        text = "".join(part.text for part in parts)
        calls = [call for part in parts for _, call in part.calls]
        self._called = bool(calls)
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text or not calls else []
        content += [
            {"type": "tool_use", "id": call_id(), "name": call.name, "input": json.loads(call.arguments)}
            for call in calls
        ]
        last = parts[-1]
        body = {
            "id": self._head["id"],
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.asked.model,
            **self._stop(last),
            "usage": self._usage(cached),
            Params.FIELD: last.params,
        }
        return {name: value for name, value in body.items() if value is not None}
