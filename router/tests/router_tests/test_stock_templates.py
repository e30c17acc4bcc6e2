"""Conversations that a template renders otherwise as they go on, on stock engines, which would read what is wrong."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from duplex_connector.contract import ConnectorKind
from duplex_router.admin.probe import TOOL_SHAPES
from duplex_router.ledger.canonical import message_bytes
from duplex_router.ledger.content import Content, content_of
from duplex_router.ledger.reading import read_history
from duplex_router.turn.templates import MARGIN_TOKENS
from duplex_router.wire.fields import split_object
from duplex_router.wire.inference import Endpoint, parse_inference
from duplex_simulator.tokenizer import CORRUPT_MARK, WORDS

from .near_site import NearSite, common, near_site
from .rig import Message, assistant, until, user

BLOCK = 16
LONG = " ".join(WORDS[:100])


@pytest.fixture(params=["plain", "strips-thinking"])
async def near(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NearSite]:
    flags = ("--sim-template", request.param, "--sim-tokenizer", "bpe-lossy")
    async with near_site(tmp_path, ConnectorKind.STOCK, *flags) as site:
        yield site


class Turns:
    """A client that sends what it likes; `ask` returns the tokens that were pulled."""

    def __init__(self, site: NearSite) -> None:
        self.site = site
        self._asked = 0

    async def ask(self, messages: list[Message], **more: Any) -> int:
        self._asked += 1
        answer = await self.site.ask(
            "Bearer one", f"turn{self._asked}", {"messages": messages, "max_tokens": 40, **more}
        )
        assert CORRUPT_MARK not in answer.text
        assert self.site.broken_rules() == 0
        messages.append(assistant(answer.text))
        return answer.pulled


def filled(site: NearSite, tail: int) -> Message:
    """Return a user's message that ends its prompt `tail` tokens after the end of a block."""
    words = next(
        count for count in range(60, 90) if len(site.prompt_ids([user(" ".join(WORDS[:count]))], {})) % BLOCK == tail
    )
    return user(" ".join(WORDS[:words]))


async def test_a_reply_sent_last_keeps_its_thought_until_a_user_speaks(near: NearSite) -> None:
    turns, messages = Turns(near), [user(LONG)]
    await turns.ask(messages)
    messages[-1]["content"] = f"<think>{LONG}</think>{messages[-1]['content']}"
    await turns.ask(messages)
    messages.append(user("and then"))
    await turns.ask(messages)


async def test_what_is_known_of_a_stable_turn_is_not_handed_to_one_that_is_not(near: NearSite) -> None:
    turns, messages = Turns(near), [user(LONG)]
    await turns.ask(messages)
    messages.append(user("next"))
    await turns.ask(messages)
    messages[-1]["content"] = f"<think>{LONG}</think>{messages[-1]['content']}"
    await turns.ask(messages)
    messages.append(user("and then"))
    await turns.ask(messages)


async def test_a_user_who_speaks_twice_in_a_row_does_not_meet_the_former_reply(near: NearSite) -> None:
    turns = Turns(near)
    for tail in range(6):
        asked = filled(near, tail)
        await turns.ask([asked])
        pulled = await turns.ask([asked, user(LONG)])
        assert pulled > 0, "all but the prompt's end is the same"


async def test_the_probe_counts_all_that_has_the_assistant_speak(near: NearSite) -> None:
    for more in ({}, {"chat_template_kwargs": {"enable_thinking": False}}):
        messages = [user("one"), user("two")]
        request = parse_inference(Endpoint.CHAT, json.dumps({"messages": messages, **more}).encode())
        history = read_history(request, proved=False)
        assert history is not None
        templates = near.service.core.templates
        await until(lambda: templates.slack("r1", request, history) is not None)  # noqa: B023 - awaited here
        one, both = (near.prompt_ids(each, more) for each in (messages[:1], messages))
        assert templates.slack("r1", request, history) == len(one) - common(one, both) + MARGIN_TOKENS


SYSTEM: Message = {"role": "system", "content": "Be brief."}
CALLED: Message = {**assistant("I shall look."), "tool_calls": [{"id": "1", "function": {"name": "f"}}]}


@pytest.mark.parametrize(
    ("messages", "content"),
    [
        ([user("a")], Content.PLAIN),
        ([SYSTEM, user("a"), assistant("b"), user("c")], Content.PLAIN),
        ([SYSTEM, user("a"), {**assistant("b"), "refusal": None}, user("c")], Content.PLAIN),
        ([user("a"), assistant("b")], Content.MIXED),
        ([SYSTEM], Content.MIXED),
        ([user("a"), SYSTEM, user("b")], Content.MIXED),
        ([user("a"), CALLED, {"role": "tool", "tool_call_id": "1", "content": "b"}, user("c")], Content.MIXED),
        ([user("a"), {**assistant("b"), "reasoning": "so"}, user("c")], Content.MIXED),
        ([user("a"), assistant("b"), user("<tool_response>\nfound\n</tool_response>")], Content.MIXED),
        ([user("a"), {"role": "critic", "content": "b"}], Content.UNPROBED),
        ([user("a"), {**assistant("b"), "mood": "merry"}, user("c")], Content.UNPROBED),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}], Content.UNPROBED),
        *[(shape, Content.MIXED) for shape in TOOL_SHAPES],
    ],
)
def test_what_a_conversation_is_made_of(messages: list[Message], content: Content) -> None:
    forms = [message_bytes(split_object(json.dumps(message).encode()), exact=True) for message in messages]
    assert content_of(forms) is content
