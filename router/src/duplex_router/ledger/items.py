"""Histories of OpenAI's Responses API, whose parts are items, and of Anthropic's Messages API, made of blocks."""

from __future__ import annotations

from typing import Any

import msgspec

from duplex_router.wire.fields import Fields
from duplex_router.wire.messages import canonical_input

from .history import Conversation, canonical, digest_of_reply

_STAMP = "x-anthropic-billing-header"
"""What Claude Code begins a system block with that differs from request to request; vLLM leaves such blocks out of the
prompt (anthropic/serving.py, 0.33.0)."""

_CACHE_CONTROL = "cache_control"
"""Clients move this marker to the newest block with each turn; vLLM ignores it."""


def _decoded(message: Fields) -> dict[str, Any]:
    return {name: msgspec.json.decode(value) for name, value in message.items()}


class ResponseItems(Conversation):
    """A history of items: one mark an item. A reply is a run of items: reasoning, messages, calls."""

    __slots__ = ()

    @staticmethod
    def sent_reply(messages: list[Fields]) -> bytes:
        """See `Conversation`."""
        texts: list[str] = []
        calls: list[tuple[str, str]] = []
        said = False
        for message in messages:
            item = _decoded(message)
            if item.get("type") == "function_call":
                calls.append((str(item.get("name", "")), str(item.get("arguments", ""))))
            elif item.get("role") == "assistant":
                texts.append(_text(item.get("content")))
            elif item.get("type") != "reasoning":
                break
            said = True
        return digest_of_reply("".join(texts), calls) if said else b""


class AnthropicMessages(Conversation):
    """A history of Anthropic's messages: one mark a message."""

    __slots__ = ()

    @staticmethod
    def message_bytes(message: Fields) -> bytes:
        """See `Conversation`. A text is the same as one block of it."""
        fields = _decoded(message)
        content = fields.get("content")
        if isinstance(content, str):
            fields["content"] = [{"type": "text", "text": content}]
        return canonical(without_cache_control(fields))

    @staticmethod
    def sent_reply(messages: list[Fields]) -> bytes:
        """See `Conversation`."""
        message = _decoded(messages[0])
        if message.get("role") != "assistant":
            return b""
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        calls = [
            (str(block.get("name", "")), canonical_input(canonical(block.get("input"))))
            for block in blocks
            if isinstance(block, dict) and block.get("type") == "tool_use"
        ]
        return digest_of_reply(_text(content), calls)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def without_cache_control(value: object) -> object:
    """Return a JSON value without the markers for Anthropic's cache."""
    if isinstance(value, dict):
        return {name: without_cache_control(each) for name, each in value.items() if name != _CACHE_CONTROL}
    if isinstance(value, list):
        return [without_cache_control(each) for each in value]
    return value


def system_without_stamp(value: object) -> object:
    """Return a system prompt without the blocks that vLLM leaves out of it."""
    if not isinstance(value, list):
        return value
    kept = [block for block in value if not (isinstance(block, dict) and str(block.get("text")).startswith(_STAMP))]
    return without_cache_control(kept)
