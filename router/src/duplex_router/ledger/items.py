"""Histories of OpenAI's Responses API, whose parts are items, and of Anthropic's Messages API, made of blocks."""

from __future__ import annotations

from typing import Final

from duplex_router.wire.fields import Fields
from duplex_router.wire.reply import Reply

from .canonical import (
    ASSISTANT,
    assistant_bytes,
    call_bytes,
    calls_of,
    canonical_json,
    decoded,
    joined_text,
    text_message,
)

_STAMP: Final = "x-anthropic-billing-header"
"""What Claude Code begins a system block with that differs from request to request; vLLM leaves such blocks out of the
prompt (anthropic/serving.py, 0.33.0)."""

_NAMES: Final = frozenset({"id", "call_id", "status"})
"""What names an item, and changes nothing in the prompt that an engine could not see in its tokens."""

_CACHE_CONTROL: Final = "cache_control"
"""Clients move this marker to the newest block with each turn; vLLM ignores it."""


def item_bytes(item: Fields, *, exact: bool) -> bytes:
    """Return an item's canonical form; see `canonical`. Loosely, reasoning is nothing: clients drop it."""
    fields = decoded(item)
    if exact:
        return canonical_json(fields)
    if fields.get("type") == "function_call":
        return call_bytes(str(fields.get("name", "")), str(fields.get("arguments", "")))
    if fields.get("type") == "reasoning":
        return b""
    content = fields.get("content")
    if fields.get("role") == ASSISTANT or ("role" in fields and isinstance(content, str)):
        return text_message(str(fields["role"]), joined_text(content, ""))
    return canonical_json({name: value for name, value in fields.items() if name not in _NAMES})


def reply_items(reply: Reply) -> list[bytes]:
    """Return an engine's reply as the items in which a client sends it back."""
    said = [text_message(ASSISTANT, reply.text)] if reply.text else []
    return said + [call_bytes(*call) for call in calls_of(reply)]


def blocks_bytes(message: Fields, *, exact: bool) -> bytes:
    """Return an Anthropic message's canonical form; see `canonical`. A text is the same as one block of it."""
    fields = decoded(message)
    content = fields.get("content")
    if not exact and fields.get("role") == ASSISTANT:
        blocks = content if isinstance(content, list) else []
        calls = [
            (str(block.get("name", "")), canonical_json(block.get("input")).decode())
            for block in blocks
            if isinstance(block, dict) and block.get("type") == "tool_use"
        ]
        return assistant_bytes(joined_text(content, ""), calls)
    if isinstance(content, str):
        fields["content"] = [{"type": "text", "text": content}]
    return canonical_json(without_cache_control(fields))


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
