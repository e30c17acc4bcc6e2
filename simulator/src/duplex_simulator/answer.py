"""Answers in vLLM 0.33's shapes: bodies, stream chunks, usage (openai/*/serving.py)."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from duplex_connector.contract import Params

from .body import Asked
from .request import Status, Token
from .tokenizer import EOS, Tokenizer


@dataclass(frozen=True)
class Piece:
    """What one engine step adds to the answer."""

    text: str
    token_ids: list[int]
    finish: str | None = None
    stop_reason: int | str | None = None
    params: dict[str, Any] | None = None


def _first_stop(text: str, stops: tuple[str, ...], start: int) -> tuple[int, str] | None:
    found = [(at, stop) for stop in stops if (at := text.find(stop, start)) >= 0]
    return min(found) if found else None


async def pieces(tokens: AsyncIterator[Token], asked: Asked, tokenizer: Tokenizer) -> AsyncIterator[Piece]:
    """Turn tokens into text, hold back what may begin a stop string, and end at one.

    vLLM finds stop strings outside the engine and aborts the request there, so such an answer leaves no hold.
    """
    stops = asked.sampling.stop
    hold_back = max((len(stop) for stop in stops), default=1) - 1
    text, sent, ids = "", 0, list[int]()
    async for token in tokens:
        if token.token_id >= 0:
            ids.append(token.token_id)
        visible = [] if token.token_id in {EOS, -1} and not asked.sampling.ignore_eos else [token.token_id]
        start = max(0, len(text) - hold_back)
        text += tokenizer.decode(visible, skip_special=True)
        stop = _first_stop(text, stops, start)
        if stop is not None:
            at, reason = stop
            yield Piece(text[sent:at], ids, Status.STOPPED.value, reason)
            return
        end = len(text) if token.finish else max(sent, len(text) - hold_back)
        if token.finish is not None:
            yield Piece(text[sent:end], ids, token.finish.value, token.stop_reason, token.params)
            return
        yield Piece(text[sent:end], ids)
        sent, ids = end, []


class Answer:
    """One answer under way: `request_id` is what the client sees as `id`."""

    def __init__(self, asked: Asked, request_id: str, *, details: bool, streams_params: bool) -> None:
        self._asked, self._details, self._streams_params = asked, details, streams_params
        kind = ("chat.completion.chunk" if asked.stream else "chat.completion") if asked.chat else "text_completion"
        self._head = {"id": request_id, "object": kind, "created": int(time.time()), "model": asked.model}
        self._tokens = 0
        self._started = False

    def usage(self, cached: int | None) -> dict[str, Any]:
        """Return the usage so far; `cached` appears with --enable-prompt-tokens-details."""
        prompt = len(self._asked.prompt)
        details = {"cached_tokens": cached} if self._details and cached is not None else None
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + self._tokens,
            "completion_tokens": self._tokens,
            "prompt_tokens_details": details,
        }

    def opening(self) -> bytes | None:
        """Return a chat stream's first chunk, which has the role and no text; completions have none."""
        if not self._asked.chat:
            return None
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        ids = self._asked.prompt if self._asked.return_token_ids else None
        return self._event({**self._head, "choices": [choice], "prompt_token_ids": ids})

    def chunk(self, piece: Piece) -> bytes:
        """Return the chunk of one piece; the params stand in the one with the finish reason, null in the others."""
        self._tokens += len(piece.token_ids)
        ids = piece.token_ids if self._asked.return_token_ids else None
        choice: dict[str, Any] = {"index": 0}
        if self._asked.chat:
            choice |= {"delta": {"content": piece.text}, "logprobs": None, "finish_reason": piece.finish}
            if piece.finish is not None:
                choice["stop_reason"] = piece.stop_reason
        else:
            choice |= {
                "text": piece.text,
                "logprobs": None,
                "finish_reason": piece.finish,
                "stop_reason": piece.stop_reason,
                "prompt_token_ids": self._asked.prompt if self._asked.return_token_ids and not self._started else None,
            }
        self._started = True
        body = {**self._head, "choices": [{**choice, "token_ids": ids}]}
        if self._streams_params:
            body[Params.FIELD] = piece.params
        if self._asked.continuous_usage:
            body["usage"] = self.usage(None)
        return self._event(body)

    def closing(self, cached: int | None) -> bytes:
        """Return the end of a stream: the usage chunk where it was asked for, and `[DONE]`."""
        end = b"data: [DONE]\n\n"
        if not self._asked.include_usage:
            return end
        return self._event({**self._head, "choices": [], "usage": self.usage(cached)}) + end

    def whole(self, parts: list[Piece], cached: int | None) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        text = "".join(part.text for part in parts)
        ids = [token for part in parts for token in part.token_ids]
        self._tokens = len(ids)
        last = parts[-1]
        shown, prompt = (ids, self._asked.prompt) if self._asked.return_token_ids else (None, None)
        ending = {"logprobs": None, "finish_reason": last.finish, "stop_reason": last.stop_reason, "token_ids": shown}
        body: dict[str, Any] = {**self._head, "service_tier": None, "system_fingerprint": None}
        body["usage"] = self.usage(cached)
        body["prompt_logprobs"], body[Params.FIELD] = None, last.params
        if self._asked.chat:
            message = {"role": "assistant", "content": text, "refusal": None, "reasoning": None}
            return body | {"choices": [{"index": 0, "message": message, **ending}], "prompt_token_ids": prompt}
        choice = {"index": 0, "text": text, **ending, "prompt_logprobs": None, "prompt_token_ids": prompt}
        return body | {"choices": [choice]}

    @staticmethod
    def _event(body: dict[str, Any]) -> bytes:
        return b"data: " + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
