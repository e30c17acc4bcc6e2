"""What clients do to conversations, as random scripts: continue, branch, edit, strip, respell, loop over tools."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from duplex_simulator.tokenizer import WORDS

from .rig import Message

_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_TOOL = {"type": "function", "function": {"name": "look_up", "description": "Look a word up in a long list of words."}}
_OTHER_TOOL = {"type": "function", "function": {"name": "sum_up", "description": "Say in few words what was said."}}
TOOLS: list[list[dict[str, Any]]] = [[], [_TOOL], [_TOOL, _OTHER_TOOL]]


@dataclass
class Talk:
    """One conversation as its client sees it; `more`: fields beside the messages."""

    messages: list[Message]
    more: dict[str, Any] = field(default_factory=dict)

    def copy(self) -> Talk:
        return Talk([dict(message) for message in self.messages], dict(self.more))

    def asks(self) -> bool:
        return self.messages[-1]["role"] in ("user", "tool")


def text_of(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


@dataclass(frozen=True)
class Draw:
    """The random choices of one step: two whole numbers that pick a place, and words to say."""

    one: int
    two: int
    words: str

    def index(self, length: int) -> int:
        return self.one % length


def say_more(talk: Talk, draw: Draw) -> None:
    if talk.asks():
        talk.messages.pop()
    talk.messages.append({"role": "user", "content": draw.words})


def speak_on(talk: Talk, draw: Draw) -> None:
    """Say more though nobody has answered yet, as after an answer that was broken off."""
    talk.messages.append({"role": "user", "content": draw.words})


def instruct(talk: Talk, draw: Draw) -> None:
    """Put a system message where the conversation stands."""
    talk.messages.append({"role": "system", "content": draw.words})


def regenerate(talk: Talk, draw: Draw) -> None:
    while len(talk.messages) > 1 and not talk.asks():
        talk.messages.pop()


def go_back(talk: Talk, draw: Draw) -> None:
    """Branch off after an earlier message."""
    talk.messages = talk.messages[: 1 + draw.index(len(talk.messages))]
    say_more(talk, draw)


def edit(talk: Talk, draw: Draw) -> None:
    """Change the text of some message from some place on."""
    message = talk.messages[draw.index(len(talk.messages))]
    text = text_of(message)
    message["content"] = f"{text[: draw.two % (len(text) + 1)]} {draw.words}"


def cut(talk: Talk, draw: Draw) -> None:
    """Cut the end of a reply off, as clients do that truncate."""
    replies = [message for message in talk.messages if message["role"] == "assistant"]
    if replies:
        reply = replies[draw.index(len(replies))]
        text = text_of(reply)
        reply["content"] = text[: draw.two % (len(text) + 1)]


def strip(talk: Talk, draw: Draw) -> None:
    for message in talk.messages:
        if message["role"] == "assistant":
            message["content"] = _THOUGHT.sub("", text_of(message))


def compact(talk: Talk, draw: Draw) -> None:
    """Replace the oldest messages after the first by a summary."""
    kept = 1 + draw.index(len(talk.messages))
    talk.messages[1:kept] = [{"role": "user", "content": f"Summary: {draw.words}"}]


def respell(talk: Talk, draw: Draw) -> None:
    """Write the same in other ways."""
    for position, message in enumerate(talk.messages):
        text = text_of(message)
        content = [{"type": "text", "text": text}] if (position + draw.one) % 2 else text
        talk.messages[position] = {**dict(reversed(message.items())), "content": content, "name": None}


def loop_over_tools(talk: Talk, draw: Draw) -> None:
    reply = talk.messages[-1]
    if reply["role"] != "assistant":
        return
    function = {"name": "look_up", "arguments": f'{{"word": "{draw.words.split()[0]}"}}'}
    name = f"call_{draw.one}"
    reply["tool_calls"] = [{"id": name, "type": "function", "function": function}]
    talk.messages.append({"role": "tool", "tool_call_id": name, "content": draw.words})


def change_tools(talk: Talk, draw: Draw) -> None:
    talk.more["tools"] = TOOLS[draw.index(len(TOOLS))]


def change_thinking(talk: Talk, draw: Draw) -> None:
    talk.more["chat_template_kwargs"] = {"enable_thinking": bool(draw.one % 2)}


EDITS: list[Callable[[Talk, Draw], None]] = [
    say_more, say_more, say_more, regenerate, go_back, edit, cut, strip, compact, respell, loop_over_tools,
    change_tools, change_thinking, speak_on, instruct,
]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One turn: whose conversation, what is done to it first, whether on a copy, and how many are asked at once."""

    talk: int
    edits: list[tuple[int, Draw]]
    branch: bool
    at_once: int
    reply_tokens: int


def words(most: int) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(WORDS), min_size=1, max_size=most).map(" ".join)


_draws = st.builds(Draw, st.integers(0, 999), st.integers(0, 2000), words(120))
_edits = st.lists(st.tuples(st.integers(0, len(EDITS) - 1), _draws), min_size=1, max_size=3)
_steps = st.builds(
    Step, st.integers(0, 5), _edits, st.booleans(), st.sampled_from([1, 1, 1, 2, 3]), st.integers(1, 150)
)
scripts = st.tuples(st.lists(words(200), min_size=1, max_size=2), st.lists(_steps, min_size=3, max_size=12))
"""The system prompts of the conversations that there are at first, and the steps."""
