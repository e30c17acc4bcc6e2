"""The template probe finds out whether a prompt is, token for token, the beginning of the later turns' prompts.

Only stock engines need to know, since nothing proves their tokens: a handle of theirs is trusted up to the end of a
former prompt, and only if the same messages come out as the same tokens once more messages follow:
templates strip old thinking, and some keep it within a tool loop and strip it afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any

import msgspec

from duplex_connector.contract import ConnectorKind, Role
from duplex_router.fleet.document import FleetDocument
from duplex_router.fleet.engines import Engine
from duplex_router.turn.legs import Answer

from .asking import ask
from .state import AdminState

POLL_SECONDS = 1.0
MAX_SLACK_TOKENS = 32
"""A template that renders more than this differently at a prompt's end is not counted as prefix-stable."""

log = logging.getLogger(__name__)

Messages = list[dict[str, Any]]

_SYSTEM = {"role": "system", "content": "Answer briefly."}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a word up.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
        },
    }
]
_CALL = {
    "role": "assistant",
    "content": "<think>\nI shall look it up.\n</think>\n\nOne moment.",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "duplex"}'}}
    ],
}
_FOUND = {"role": "tool", "tool_call_id": "call_1", "content": "Having two parts."}
_THOUGHT = "I shall look it up."
_APART = {"reasoning": _THOUGHT, "reasoning_content": _THOUGHT}
"""A thought as a field of its own, under its present name and its former one (vLLM, chat_utils.py)."""
_CALL_APART = {**_CALL, "content": "One moment.", **_APART}
_REPLY_APART = {"role": "assistant", "content": "Two parts.", **_APART}


def _user(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"Question {number}: what does it mean?"}


def _reply(number: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"<think>\nThought {number}.\n</think>\n\nAnswer {number}."}


PLAIN_SHAPES: list[Messages] = [
    [_SYSTEM, _user(1), {"role": "assistant", "content": "Two parts."}, _user(2)],
    [_user(1), _reply(1), _user(2), _reply(2), _user(3)],
]
TOOL_SHAPES: list[Messages] = [
    [_user(1), _CALL, _FOUND, _reply(1), _user(2)],
    [_SYSTEM, _user(1), _reply(1), _user(2), _CALL, _FOUND, _CALL, _FOUND, _reply(2), _user(3)],
]
"""Conversations; every part of one that a model would be asked to answer is a prompt of an earlier turn."""

PLAIN_RARE: list[Messages] = [[_SYSTEM, _user(1), _user(2), _user(3)]]
TOOLS_RARE: list[Messages] = [
    [_user(1), _SYSTEM, _user(2)],
    [_user(1), _CALL, _FOUND, _FOUND, _user(2)],
    [_user(1), _reply(1), {"role": "user", "content": f"<tool_response>\n{_THOUGHT}\n</tool_response>"}, _user(2)],
    [_user(1), _CALL_APART, _FOUND, _REPLY_APART, _user(2), _CALL_APART, _FOUND, _REPLY_APART, _user(3)],
]
"""Conversations that some templates refuse; what is refused was no turn. Where the next to speak after a prompt is not
the assistant, all that a template puts at its end to have it speak is missing in the later ones."""


def prompts_of(conversation: Messages, *, tools: bool) -> list[Messages]:
    """Return the prompts of a conversation's turns: all that ends with the user, and with tools all beginnings.

    The first are the prompts of plain conversations, the second those of any other.
    """
    ends = [index + 1 for index, message in enumerate(conversation) if tools or message["role"] == "user"]
    return [conversation[:end] for end in ends]


def slack_of(prompts: list[list[int]]) -> int | None:
    """Return how many tokens at a prompt's end differ in later prompts; None where it is too many."""
    slack = 0
    for position, earlier in enumerate(prompts):
        for later in prompts[position + 1 :]:
            common = next(
                (index for index, (one, other) in enumerate(zip(earlier, later, strict=False)) if one != other),
                min(len(earlier), len(later)),
            )
            slack = max(slack, len(earlier) - common)
    return slack if slack <= MAX_SLACK_TOKENS else None


class UnansweredError(Exception):
    """An engine did not say how it renders a prompt: it may another time."""


class TemplateProbe:
    """Probes each revision of stock engines, once for each combination of template arguments that clients use."""

    def __init__(self, state: AdminState) -> None:
        self._state = state

    async def once(self, document: FleetDocument, revision: str, arguments: bytes) -> None:
        """Probe a revision through one of its prefill engines; what is not answered is asked again another time."""
        core = self._state.core
        engine = next(iter(core.fleet.ready(revision, Role.PREFILL)), None)
        if engine is None:
            return
        for tools in (False, True):
            fields = {**msgspec.json.decode(arguments), "model": document.model.name}
            try:
                slack = await self._slack(engine, {**fields, "tools": _TOOLS} if tools else fields, tools=tools)
            except UnansweredError:
                log.warning("revision %s: the chat template could not be probed; it will be tried again", revision)
                return
            core.templates.learn(revision, tools=tools, slack=slack, arguments=arguments)
            found = "not prefix-stable: no reuse" if slack is None else f"prefix-stable but for {slack} tokens"
            what = "with" if tools else "without"
            log.info("revision %s, chat template %s tools, by %s: %s", revision, what, arguments.decode(), found)

    async def _slack(self, engine: Engine, fields: dict[str, Any], *, tools: bool) -> int | None:
        worst = 0
        shapes = [*PLAIN_SHAPES, *TOOL_SHAPES] if tools else PLAIN_SHAPES
        rare = [*PLAIN_RARE, *TOOLS_RARE] if tools else PLAIN_RARE
        for shape in [*shapes, *rare]:
            prompts = [await self._tokens(engine, fields, prompt) for prompt in prompts_of(shape, tools=tools)]
            known = [prompt for prompt in prompts if prompt is not None]
            slack = slack_of(known) if len(known) == len(prompts) or shape in rare else None
            if slack is None:
                return None
            worst = max(worst, slack)
        return worst

    async def _tokens(self, engine: Engine, fields: dict[str, Any], messages: Messages) -> list[int] | None:
        """Return a prompt's tokens; None where the engine refuses to render it."""
        body = msgspec.json.encode({**fields, "messages": messages, "add_generation_prompt": True})
        answer = await ask(self._state.core.transport, engine, b"/tokenize", body)
        if not isinstance(answer, Answer) or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise UnansweredError
        if answer.status != HTTPStatus.OK:
            return None
        try:
            return list(msgspec.json.decode(answer.body, type=dict[str, Any])["tokens"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return None

    async def run(self) -> None:
        """Probe what is new until cancelled."""
        while True:
            core = self._state.core
            document = core.fleet.document
            if document is not None and document.model.connector is ConnectorKind.STOCK:
                for revision in document.revisions:
                    if core.fleet.complete(revision.name):
                        for arguments in core.templates.wanted(revision.name):
                            await self.once(document, revision.name, arguments)
            await asyncio.sleep(POLL_SECONDS)
