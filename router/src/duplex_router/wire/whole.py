"""Which requests cannot run as two legs, and why: decode then serves them alone. Sources: vLLM 0.33.0."""

from __future__ import annotations

from typing import Final

import msgspec

from .fields import Fields, Value, is_null
from .shapes import decode_typed, decode_types

WHOLE_FIELDS: Final = frozenset(
    {
        "n",
        "best_of",
        "use_beam_search",
        "prompt_logprobs",
        "echo",
        "prompt",
        "truncate_prompt_tokens",
        "truncation",
        "tool_choice",
        "tools",
    }
)
"""All that `why_whole` looks at: without one of these every request can be split."""

_FALSE: Final = b"false"
_ONE: Final = b"1"
_CLIENT_TOOLS: Final = frozenset({"function", "custom", "namespace"})


def why_whole(fields: Fields, own: Fields, *, is_messages: bool) -> str:
    """Say why a request runs on decode alone; empty where it can be split.

    `fields` are what both legs would share, `own` the client's values of what each leg has for itself.
    """
    if _asks(own, "n", unless=_ONE) or _asks(own, "best_of", unless=_ONE) or _asks(fields, "use_beam_search"):
        return "several-sequences"  # all would read one hand-off, and the first frees it
    if _asks(fields, "prompt_logprobs") or _asks(fields, "echo"):
        return "prompt-logprobs"  # these need the whole prompt computed
    if _has_several_prompts(bytes(memoryview(fields.get("prompt", b""))[:64])):
        return "several-prompts"
    if _asks(fields, "truncate_prompt_tokens") or _asks(fields, "truncation", unless=b'"disabled"'):
        return "truncation"  # it leaves room for max_tokens, which differs between the legs: so would their prompts
    if is_messages:
        # The answer of one token would be a piece of the call's JSON, which Anthropic's shape cannot carry: a 400.
        choice = fields.get("tool_choice")
        return "named-tool" if choice is not None and _type_of(choice) == "tool" else ""
    # With these an engine calls tools itself and generates again, each time with the same kv_transfer_params.
    return "built-in-tools" if _types_of(fields.get("tools")) - _CLIENT_TOOLS else ""


def _asks(fields: Fields, name: str, *, unless: bytes = _FALSE) -> bool:
    raw = fields.get(name)
    return raw is not None and not is_null(raw) and bytes(raw) != unless


def _has_several_prompts(start: bytes) -> bool:
    # One prompt is a string or a list of numbers; a list of strings or of lists holds several.
    return start[:1] == b"[" and start[1:].lstrip()[:1] in (b'"', b"[")


def _type_of(raw: Value) -> str | None:
    try:
        return decode_typed(raw).type
    except msgspec.DecodeError:
        return None


def _types_of(raw: Value | None) -> set[str]:
    """Return the types of a list of tools; what is malformed is for the engines to refuse."""
    if raw is None or is_null(raw):
        return set()
    try:
        return {tool.type for tool in decode_types(raw) if tool.type is not None}
    except msgspec.DecodeError:
        return set()
