"""Asks engines which models they serve, so that clients see adapters, and may name them."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec

from duplex_connector.contract import Role
from duplex_router.fleet.engines import Engine
from duplex_router.fleet.models import Card, read_cards
from duplex_router.turn.legs import Answer

from .asking import ask
from .state import AdminState

INTERVAL_SECONDS = 10.0
UNTIL_KNOWN_SECONDS = 1.0


class ModelReader:
    """Reads `/v1/models` of one ready engine of each role and revision: a turn needs its model on both."""

    def __init__(self, state: AdminState) -> None:
        self._state = state
        self.known = False

    async def once(self) -> None:
        """Ask each once; without any answer, what was known stays."""
        fleet = self._state.core.fleet
        if fleet.document is None:
            return
        asked = [
            engine
            for revision in fleet.document.revisions
            for role in Role
            for engine in fleet.ready(revision.name, role)[:1]
        ]
        answers = [cards for cards in await asyncio.gather(*map(self._cards, asked)) if cards is not None]
        if answers:
            self.known = True
            self._state.core.models.take(card for cards in answers for card in cards)

    async def _cards(self, engine: Engine) -> list[Card] | None:
        answer = await ask(self._state.core.transport, engine, b"/v1/models", method=b"GET")
        if not isinstance(answer, Answer) or answer.status != HTTPStatus.OK:
            return None
        try:
            return read_cards(answer.body)
        except (msgspec.DecodeError, RecursionError):
            return None

    async def run(self) -> None:
        """Ask again and again until cancelled."""
        while True:
            await self.once()
            await asyncio.sleep(INTERVAL_SECONDS if self.known else UNTIL_KNOWN_SECONDS)
