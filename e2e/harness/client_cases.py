"""What the vendors' clients ask: single requests of each inference API, and conversations as each API carries them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

from .answers import joined
from .conversation import prose

Options = dict[str, Any]
"""The keyword arguments of a client's call."""

_REPLY_TOKENS: Final = 16
_FIRST_WORDS: Final = 200
_NEXT_WORDS: Final = 100
_PARAMETERS: Final = {"type": "object", "properties": {"city": {"type": "string"}}}
_TOOL: Final = {"type": "function", "function": {"name": "get_weather", "parameters": _PARAMETERS}}
_CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Ulm"}'}}
_SEEDED: Final = {"n": 2, "temperature": 1, "seed": 7}


class Api(StrEnum):
    """The inference APIs."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


def single_cases(nonce: str) -> Iterator[tuple[Api, str, Options]]:
    """Give the cases of one request each: their names, and what is asked, to be sent whole and streamed."""
    text, more = prose(nonce, 1, _FIRST_WORDS), prose(nonce, 2, 20)
    words = [{"role": "user", "content": text}]
    parts = [{"role": "user", "content": [{"type": "text", "text": each} for each in (text, more)]}]
    result = {"role": "tool", "tool_call_id": _CALL["id"], "content": more}
    loop = [*words, {"role": "assistant", "content": None, "tool_calls": [_CALL]}, result]

    chat: Options = {"messages": words, "max_tokens": _REPLY_TOKENS}
    yield Api.CHAT, "plain", chat
    yield Api.CHAT, "max_completion_tokens", {"messages": words, "max_completion_tokens": 7}
    yield Api.CHAT, "two choices by a seed", {**chat, **_SEEDED}
    yield Api.CHAT, "log-probabilities", {**chat, "logprobs": True, "top_logprobs": 3}
    yield Api.CHAT, "stop", {**chat, "stop": ["e", "a"]}
    yield Api.CHAT, "multi-part content", {**chat, "messages": parts}
    yield Api.CHAT, "a tool's result", {**chat, "messages": loop, "tools": [_TOOL], "tool_choice": "none"}

    completion: Options = {"prompt": text, "max_tokens": _REPLY_TOKENS}
    yield Api.COMPLETIONS, "plain", completion
    yield Api.COMPLETIONS, "two choices by a seed", {**completion, **_SEEDED}
    yield Api.COMPLETIONS, "log-probabilities", {**completion, "logprobs": 2}
    yield Api.COMPLETIONS, "several prompts", {**completion, "prompt": [text, more]}
    yield Api.COMPLETIONS, "token ids, stop", {**completion, "prompt": list(range(300, 500)), "stop": ["e"]}

    response: Options = {"input": text, "max_output_tokens": _REPLY_TOKENS}
    yield Api.RESPONSES, "plain", response
    yield Api.RESPONSES, "instructions", {**response, "instructions": more}

    message: Options = {"messages": words, "max_tokens": _REPLY_TOKENS}
    yield Api.MESSAGES, "plain", message
    yield Api.MESSAGES, "system", {**message, "system": [{"type": "text", "text": more}]}
    yield Api.MESSAGES, "stop", {**message, "stop_sequences": ["e", "a"]}
    yield Api.MESSAGES, "multi-part content", {**message, "messages": parts}


def streamed(api: Api, options: Options) -> Options:
    """Return the options that ask for a stream; it ends with the usage where a client has to ask for that."""
    told = {"stream_options": {"include_usage": True}} if api in {Api.CHAT, Api.COMPLETIONS} else {}
    return {**options, **told, "stream": True}


class Conversation:
    """One conversation's history, as its API carries it."""

    def __init__(self, api: Api, nonce: str) -> None:
        self._api = api
        self._nonce = nonce
        self._items: list[Any] = []
        self._turn = 0

    def say(self) -> Options:
        """Say something more, and return the request."""
        self._turn += 1
        text = prose(self._nonce, self._turn, _FIRST_WORDS if self._turn == 1 else _NEXT_WORDS)
        self._items.append(text if self._api is Api.COMPLETIONS else {"role": "user", "content": text})
        match self._api:
            case Api.COMPLETIONS:
                return {"prompt": " ".join(self._items), "max_tokens": _REPLY_TOKENS}
            case Api.RESPONSES:
                return {"input": list(self._items), "max_output_tokens": _REPLY_TOKENS}
            case _:
                return {"messages": list(self._items), "max_tokens": _REPLY_TOKENS}

    def take(self, parts: list[Any]) -> None:
        """Add an answer, whole or streamed, to the history as its client would."""
        match self._api:
            case Api.RESPONSES:
                last = parts[-1]
                self._items += last.get("response", last)["output"]
            case Api.MESSAGES:
                blocks = [
                    block for part in joined(parts) for block in part.get("content") or [part.get("delta")] if block
                ]
                text = "".join(block["text"] for block in blocks if "text" in block)
                self._items.append({"role": "assistant", "content": [{"type": "text", "text": text}]})
            case _:
                choice = next(part for part in joined(parts) if "index" in part)
                said = choice.get("message") or choice.get("delta") or {}
                if self._api is Api.CHAT:
                    self._items.append({"role": "assistant", "content": said["content"]})
                else:
                    self._items.append(choice["text"].strip())
