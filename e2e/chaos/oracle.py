"""What the answer to a request must be: what one plain engine, alone and undisturbed, would say."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from duplex_simulator.answer import pieces
from duplex_simulator.assembly import assemble
from duplex_simulator.body import ask
from duplex_simulator.clock import SystemClock
from duplex_simulator.request import EngineRequest
from duplex_simulator.sequence import SequenceKV
from duplex_simulator.settings import parse

MODEL = "model"


class Oracle:
    """A simulated engine without connector or clock, in this process. `flags`: those of the engines under test."""

    def __init__(self, flags: Sequence[str]) -> None:
        self._process = assemble(parse(["serve", MODEL, *flags], {}), SystemClock())
        self._asked = 0

    def start(self) -> None:
        """Begin to run, within the event loop."""
        self._process.engine.start()

    async def close(self) -> None:
        """End."""
        await self._process.close()

    async def text(self, body: dict[str, Any]) -> str:
        """Return the text that a chat request must be answered with."""
        process = self._process
        asked = ask(body, process.settings, process.tokenizer, chat=True)
        self._asked += 1
        kv = SequenceKV(process.engine.pool, process.layout, asked.prompt, adapter=asked.adapter, salt=asked.salt)
        request = EngineRequest(f"oracle-{self._asked}", kv, len(asked.prompt), asked.sampling, params=None)
        async with aclosing(process.engine.generate(request)) as tokens:
            return "".join([piece.text async for piece in pieces(tokens, asked, process.tokenizer)])
