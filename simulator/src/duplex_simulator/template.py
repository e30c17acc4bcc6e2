"""Chat templates: how messages become a prompt. One keeps replies verbatim, one drops old thinking as Qwen3's does."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_NO_THOUGHT = "<think>\n\n</think>\n\n"


class TemplateKind(StrEnum):
    """`plain`: the next prompt extends the last one token for token. `strips-thinking`: it does not."""

    PLAIN = "plain"
    STRIPS_THINKING = "strips-thinking"


class TemplateError(ValueError):
    """The messages cannot be rendered; the text says what to send instead."""


def _text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [
            part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in content
        ]
        if all(isinstance(part, str) for part in parts):
            return "\n".join(str(part) for part in parts)
        raise TemplateError("this model takes text only: every content part must be {'type': 'text', 'text': ...}")
    raise TemplateError("message content must be a string or a list of text parts")


def _body(message: Mapping[str, Any], *, strip: bool) -> str:
    text = _text(message.get("content"))
    if strip:
        text = _THOUGHT.sub("", text)
    calls = message.get("tool_calls")
    if calls:
        text += "".join(
            f"\n<tool_call>\n{json.dumps(call.get('function'), sort_keys=True)}\n</tool_call>" for call in calls
        )
    return text


def render(
    messages: Sequence[Mapping[str, Any]],
    *,
    kind: TemplateKind,
    tools: Sequence[Any] | None = None,
    generation_prompt: bool = True,
    thinking: bool = True,
) -> str:
    """Return the prompt's text.

    With `strips-thinking`, thoughts of replies before the last user message vanish, and without `thinking` the
    generation prompt (never the history) carries an empty thought: both are what Qwen3's template does.
    """
    if not messages:
        raise TemplateError("messages must not be empty")
    last_user = max((index for index, message in enumerate(messages) if message.get("role") == "user"), default=-1)
    out = []
    if tools:
        out.append(f"<|im_start|>tools\n{json.dumps(list(tools), sort_keys=True)}<|im_end|>\n")
    for index, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str):
            raise TemplateError("every message needs a role")
        strip = kind is TemplateKind.STRIPS_THINKING and role == "assistant" and index < last_user
        out.append(f"<|im_start|>{role}\n{_body(message, strip=strip)}<|im_end|>\n")
    if generation_prompt:
        out.append("<|im_start|>assistant\n")
        if kind is TemplateKind.STRIPS_THINKING and not thinking:
            out.append(_NO_THOUGHT)
    return "".join(out)
