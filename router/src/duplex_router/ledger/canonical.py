"""Messages and tools in one canonical form, so that equal content has equal bytes however a client wrote it.

Two forms. The exact one keeps everything but spelling (order of keys, white space, escapes, nulls, a lone text part for
a string: vLLM renders those alike); it is what a stock engine's handle may be trusted on. The loose one also drops what
clients change when they send a reply back (reasoning, call ids, the spelling of arguments): it finds handles for
engines that prove the tokens themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from duplex_router.wire.fields import Fields, Value, escaped
from duplex_router.wire.reply import Reply

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_ROLE_AND_CONTENT: Final = {"role", "content"}
_LONE_TEXT: Final = {"type", "text"}
ASSISTANT: Final = "assistant"
_ASSISTANT_TEXT: Final = b"tassistant\0"
_TOOL: Final = "tool"

_decode_text: Final = msgspec.json.Decoder(str).decode
canonical_json: Final = msgspec.json.Encoder(order="deterministic").encode


def message_bytes(message: Fields, *, exact: bool) -> bytes:
    """Return a message's canonical form. The usual kind, role and text, needs no decoding into objects."""
    content = message.get("content")
    if content is not None and message.keys() == _ROLE_AND_CONTENT and memoryview(content)[0] == _QUOTE:
        return b"t%b\0%b" % (text_bytes(message["role"]), text_bytes(content))
    fields = decoded(message)
    text = _lone_text(fields.get("content"))
    if text is not None:
        fields["content"] = text
    role = fields.get("role")
    if not exact and role == ASSISTANT:
        return assistant_bytes(joined_text(fields.get("content"), "\n"), _calls(fields.get("tool_calls")))
    if not exact and role == _TOOL:
        fields = {name: value for name, value in fields.items() if name in _ROLE_AND_CONTENT}
    if fields.keys() == _ROLE_AND_CONTENT and isinstance(role, str) and text is not None:
        return text_message(role, text)
    return b"j" + canonical_json(fields)


def decoded(fields: Fields) -> dict[str, Any]:
    """Return fields as objects, without those that are null: vLLM takes both alike."""
    values = {name: msgspec.json.decode(value) for name, value in fields.items()}
    return {name: value for name, value in values.items() if value is not None}


def text_message(role: str, text: str) -> bytes:
    """Return the canonical form of a message that has a role and a text and nothing else."""
    return b"t%b\0%b" % (escaped(role), escaped(text))


def text_bytes(raw: Value) -> bytes:
    """Return the canonical form of a text from its JSON: what `escaped` makes of it.

    Most serialisers write just that, so that it need not be decoded: where nothing is escaped that need not be, each
    text has one spelling. Raises msgspec.DecodeError or UnicodeDecodeError where it is no text.
    """
    text = bytes(raw)
    if text[:1] != b'"' or text[-1:] != b'"' or _is_spelt_otherwise(text):
        return escaped(_decode_text(raw))
    if not text.isascii():
        text.decode()
    return text[1:-1]


def _is_spelt_otherwise(text: bytes) -> bool:
    """Tell whether something may be escaped that need not be."""
    return _BACKSLASH in text and (text.find(b"\\u") >= 0 or text.find(b"\\/") >= 0)


def assistant_bytes(text: str, calls: list[tuple[str, str]]) -> bytes:
    """Return the loose form of an assistant's message: its text, and (name, arguments) of each call."""
    return _assistant(escaped(text), calls)


def _assistant(text: bytes, calls: list[tuple[str, str]]) -> bytes:
    plain = _ASSISTANT_TEXT + text
    return plain + b"\0" + b"".join(call_bytes(*call) for call in calls) if calls else plain


def call_bytes(name: str, arguments: str) -> bytes:
    """Return the loose form of a call."""
    return canonical_json((name, _same_arguments(arguments)))


def reply_message(reply: Reply) -> list[bytes]:
    """Return an engine's reply as the one message in which a client sends it back."""
    return [_assistant(reply.escaped, calls_of(reply) if reply.tool_calls else [])]


def calls_of(reply: Reply) -> list[tuple[str, str]]:
    """Return (name, arguments) of a reply's calls."""
    return [(call.name, call.arguments) for _, call in sorted(reply.tool_calls.items())]


def _lone_text(content: object) -> str | None:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.keys() == _LONE_TEXT and part["type"] == "text" and isinstance(part["text"], str):
            return str(part["text"])
    return None


def joined_text(content: object, between: str) -> str:
    """Return the text of a string or of a list of parts."""
    if isinstance(content, str):
        return content
    parts: Iterable[Any] = content if isinstance(content, list) else ()
    return between.join(str(part["text"]) for part in parts if isinstance(part, dict) and part.get("text") is not None)


def _calls(calls: object) -> list[tuple[str, str]]:
    found = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments", "")
            text = arguments if isinstance(arguments, str) else canonical_json(arguments).decode()
            found.append((str(function.get("name", "")), text))
    return found


def _same_arguments(arguments: str) -> str:
    """Return arguments without their spelling, where they are JSON."""
    try:
        return canonical_json(msgspec.json.decode(arguments)).decode()
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return arguments
