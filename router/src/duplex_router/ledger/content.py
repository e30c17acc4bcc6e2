"""Which kinds of conversations there are, for templates that render what they share otherwise as they go on.

Of exact forms (see `canonical`) alone: only stock engines need it, since nothing proves their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Literal

import msgspec

from .canonical import text_message

_SYSTEM = text_message("system", "")
_USER = text_message("user", "")
_ASSISTANT = text_message("assistant", "")
_TOOL_RESULT = text_message("user", "<tool_response>")
"""Some clients send what a tool found as a user's text; Qwen3's template takes that for a tool's (chat_template)."""


class Content(Enum):
    """What a conversation is made of.

    `PLAIN`: a system's text at first, if any, then texts of user and assistant, the last of them the user's.
    `MIXED`: with tools, reasoning that is told apart, system texts further on, or a reply at its end.
    `UNPROBED`: with what no probe can speak for: images (the same name may mean another one later), roles or fields
    that a template may render by rules of its own, and items and blocks, which vLLM makes into messages by its own.
    """

    PLAIN = auto()
    MIXED = auto()
    UNPROBED = auto()


class _Text(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    """What the template probe sends, and a name."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[_Text] | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] = []
    tool_call_id: str | None = None


_decode_message = msgspec.json.Decoder(_Message).decode


def content_of(messages: Sequence[bytes]) -> Content:
    """Return what messages in exact form make."""
    first = 1 if messages[0].startswith(_SYSTEM) else 0
    plain = messages[-1].startswith(_USER) and len(messages) > first
    for message in messages[first:]:
        if message.startswith(_ASSISTANT):
            continue
        if message.startswith(_USER):
            plain = plain and not message.startswith(_TOOL_RESULT)
        elif message.startswith(_SYSTEM) or _is_probed(message):
            plain = False
        else:
            return Content.UNPROBED
    return Content.PLAIN if plain else Content.MIXED


def _is_probed(message: bytes) -> bool:
    if message[:1] != b"j":
        return message.startswith(b"ttool\0")
    try:
        _decode_message(message[1:])
    except msgspec.DecodeError:
        return False
    return True
