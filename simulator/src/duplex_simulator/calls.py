"""Tool calls on demand: which ones a reply consists of, how they are spelt in tokens, and how they are read again.

The model calls a tool where `tool_choice` forces it, and under `auto` where the last message is a user's that names it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .tokenizer import WORDS

_OPEN: Final = "\n<tool_call>\n"
_CLOSE: Final = "\n</tool_call>"
_BLOCK: Final = re.compile(re.escape(_OPEN) + r"(.*?)" + re.escape(_CLOSE), re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A function's name and its arguments as JSON."""

    name: str
    arguments: str

    def spelt(self) -> str:
        """Return the call as the chat template writes it, so that it comes back as the same tokens."""
        function = {"arguments": self.arguments, "name": self.name}
        return f"{_OPEN}{json.dumps(function, sort_keys=True)}{_CLOSE}"


def _functions(tools: object) -> dict[str, Mapping[str, Any]]:
    found = {}
    for tool in tools if isinstance(tools, list) else []:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[function["name"]] = function
    return found


def wanted(body: Mapping[str, Any], prompt: Sequence[int]) -> tuple[Call, ...]:
    """Return the calls that the reply to a chat request consists of; none where the model answers in words."""
    functions = _functions(body.get("tools"))
    choice = body.get("tool_choice", "auto")
    if not functions or choice == "none":
        return ()
    if isinstance(choice, Mapping):
        names = [name for name in functions if name == (choice.get("function") or {}).get("name")]
    elif choice == "required":
        names = list(functions)[:1]
    else:
        names = [name for name in functions if name in _last_question(body)]
    if body.get("parallel_tool_calls") is False:
        names = names[:1]
    seed = zlib.crc32(json.dumps(list(prompt)).encode())
    return tuple(Call(name, _arguments(functions[name], seed)) for name in names)


def _last_question(body: Mapping[str, Any]) -> str:
    last = body["messages"][-1]
    return json.dumps(last.get("content"), ensure_ascii=False) if last.get("role") == "user" else ""


def _arguments(function: Mapping[str, Any], seed: int) -> str:
    properties = (function.get("parameters") or {}).get("properties") or {}
    return json.dumps({name: _value(schema, seed + index) for index, (name, schema) in enumerate(properties.items())})


def _value(schema: Mapping[str, Any], seed: int) -> object:
    if schema.get("enum"):
        return schema["enum"][seed % len(schema["enum"])]
    words = f"{WORDS[seed % len(WORDS)]} {WORDS[seed // 7 % len(WORDS)]}"
    others = {"integer": seed % 100, "number": seed % 100 / 4, "boolean": seed % 2 == 0, "array": [], "object": {}}
    return others.get(str(schema.get("type")), words)


class CallReader:
    """Splits a reply's text into words and calls, as a tool parser does while it streams."""

    def __init__(self) -> None:
        self._text = ""
        self._calls = 0

    def feed(self, text: str, *, last: bool) -> Iterator[str | tuple[int, Call]]:
        """Yield words, and each call with its number once it is whole; what may still become one is kept back."""
        self._text += text
        while (found := _BLOCK.search(self._text)) is not None:
            if found.start():
                yield self._text[: found.start()]
            function = json.loads(found[1])
            yield self._calls, Call(function["name"], function["arguments"])
            self._calls += 1
            self._text = self._text[found.end() :]
        kept = 0 if last else self._undecided()
        words, self._text = self._text[: len(self._text) - kept], self._text[len(self._text) - kept :]
        if words:
            yield words

    def _undecided(self) -> int:
        at = self._text.find(_OPEN)
        if at >= 0:
            return len(self._text) - at
        return next((size for size in range(len(_OPEN) - 1, 0, -1) if self._text.endswith(_OPEN[:size])), 0)
