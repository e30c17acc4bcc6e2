"""Conversations that a template renders otherwise as they go on, on stock engines, which would read what is wrong."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from duplex_connector.contract import ConnectorKind
from duplex_simulator.tokenizer import CORRUPT_MARK, WORDS

from .near_site import NearSite, near_site
from .rig import Message, assistant, user

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
