"""Answers to chat completions and completions in vLLM 0.33's shapes: bodies, stream chunks, usage."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any, ClassVar

from duplex_connector.contract import Params

from .body import Asked
from .calls import Call
from .logprobs import columns, entries
from .pieces import Piece
from .tokenizer import Tokenizer


def event(body: dict[str, Any], name: str = "") -> bytes:
    """Return a server-sent event."""
    data = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    return (b"event: %b\n" % name.encode() if name else b"") + b"data: %b\n\n" % data


def call_id() -> str:
    """Return the id of a new tool call, as vLLM makes them."""
    return f"chatcmpl-tool-{secrets.token_hex(16)}"


def _call(number: int, call: Call, *, arguments: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments}
    return {"index": number, "id": call_id(), "type": "function", "function": function}


class Answer:
    """One answer under way: `request_id` is what the client sees as `id`."""

    OPENS_EARLY: ClassVar = False
    """Whether a stream begins before the engine's first token; until it begins, an error is still a status code."""

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
        self.body = body
        self.asked, self.tokenizer, self._details, self._streams_params = asked, tokenizer, details, streams_params
        kind = ("chat.completion.chunk" if asked.stream else "chat.completion") if asked.chat else "text_completion"
        self._head = {"id": request_id, "object": kind, "created": int(time.time()), "model": asked.model}
        self.tokens = 0
        self._shown: dict[int, int] = {}

    def usage(self, cached: int | None) -> dict[str, Any]:
        """Return the usage so far; `cached` appears with --enable-prompt-tokens-details."""
        prompt = sum(map(len, self.asked.prompts))
        details = {"cached_tokens": cached} if self._details and cached is not None else None
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + self.tokens,
            "completion_tokens": self.tokens,
            "prompt_tokens_details": details,
        }

    def _prompt_of(self, index: int) -> list[int] | None:
        return self.asked.prompts[index // self.asked.count] if self.asked.return_token_ids else None

    def opening(self) -> bytes:
        """Return what a stream begins with: of chats a chunk per choice with the role and no text."""
        if not self.asked.chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        choices = [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            for index in range(self.asked.count)
        ]
        return b"".join(
            event({**self._head, "choices": [choice], "prompt_token_ids": self._prompt_of(0)}) for choice in choices
        )

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        count = self.asked.logprobs
        if count is None:
            return None
        if self.asked.chat:
            return {"content": entries(piece.token_ids, count, self.tokenizer)}
        offset = self._shown.get(piece.index, 0)
        return columns(piece.token_ids, count, self.tokenizer, offset=offset)

    def chunk(self, piece: Piece) -> bytes:
        """Return the chunks of one piece; the params stand in the one with the finish reason, null in the others."""
        self.tokens += len(piece.token_ids)
        ids = piece.token_ids if self.asked.return_token_ids else None
        choice: dict[str, Any] = {"index": piece.index}
        before = b""
        if self.asked.chat:
            delta: dict[str, Any] = {"content": piece.text}
            if piece.calls or (self.asked.calls_tools and not piece.text):
                delta = {}
                before = b"".join(self._call_chunks(piece))
                if piece.finish is None and ids is None and self.asked.logprobs is None:
                    return before
            choice |= {"delta": delta, "logprobs": self._logprobs(piece), "finish_reason": piece.finish}
            if piece.finish is not None:
                choice["stop_reason"] = piece.stop_reason
        else:
            first = piece.index not in self._shown
            choice |= {
                "text": piece.text,
                "logprobs": self._logprobs(piece),
                "finish_reason": piece.finish,
                "stop_reason": piece.stop_reason,
                "prompt_token_ids": self._prompt_of(piece.index) if first else None,
            }
        self._shown[piece.index] = self._shown.get(piece.index, 0) + len(piece.text)
        body = {**self._head, "choices": [{**choice, "token_ids": ids}]}
        if self._streams_params:
            body[Params.FIELD] = piece.params
        if self.asked.continuous_usage:
            body["usage"] = self.usage(None)
        return before + event(body)

    def _call_chunks(self, piece: Piece) -> list[bytes]:
        """Return the chunks of whole calls: the name first, then the arguments."""
        out = []
        for number, call in piece.calls:
            rest = {"index": number, "function": {"arguments": call.arguments}}
            for delta in (_call(number, call, arguments=""), rest):
                choice = {
                    "index": piece.index,
                    "delta": {"tool_calls": [delta]},
                    "logprobs": None,
                    "finish_reason": None,
                }
                out.append(event({**self._head, "choices": [choice]}))
        return out

    def closing(self, cached: int | None) -> bytes:
        """Return the end of a stream: the usage chunk where it was asked for, and `[DONE]`."""
        end = b"data: [DONE]\n\n"
        if not self.asked.include_usage:
            return end
        return event({**self._head, "choices": [], "usage": self.usage(cached)}) + end

    def whole(self, parts: list[Piece], cached: int | None) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        self.tokens = sum(len(part.token_ids) for part in parts)
        count = max(part.index for part in parts) + 1
        body: dict[str, Any] = {**self._head, "service_tier": None, "system_fingerprint": None}
        body["usage"] = self.usage(cached)
        # vLLM gives the params of one sequence only.
        body["prompt_logprobs"] = None
        body[Params.FIELD] = next((part.params for part in parts if part.finish and part.index == 0), None)
        body["choices"] = [self._choice([part for part in parts if part.index == index]) for index in range(count)]
        if self.asked.chat:
            body["prompt_token_ids"] = self._prompt_of(0)
        return body

    def _choice(self, parts: list[Piece]) -> dict[str, Any]:
        last = parts[-1]
        ids = [token for part in parts for token in part.token_ids]
        text = "".join(part.text for part in parts)
        together = Piece(text, ids, index=last.index)
        ending = {
            "logprobs": self._logprobs(together),
            "finish_reason": last.finish,
            "stop_reason": last.stop_reason,
            "token_ids": ids if self.asked.return_token_ids else None,
        }
        if not self.asked.chat:
            prompt = self._prompt_of(last.index)
            return {"index": last.index, "text": text, **ending, "prompt_logprobs": None, "prompt_token_ids": prompt}
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "reasoning": None}
        calls = [call for part in parts for call in part.calls]
        if calls:
            shaped = [_call(number, call, arguments=call.arguments) for number, call in calls]
            message["tool_calls"] = [{name: each[name] for name in ("id", "type", "function")} for each in shaped]
            message["content"] = text or None
        return {"index": last.index, "message": message, **ending}
