"""What the answer to a request must be: what one plain engine, alone and undisturbed, says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from .loopback import HOST, free_port
from .process import SimulatorProcess

MODEL = "model"


class Oracle(Protocol):
    """Knows every answer."""

    async def text(self, body: dict[str, Any]) -> str:
        """Return the text that a chat request must be answered with."""
        ...


class PlainEngine:
    """One simulated engine without connector and without delays. `flags`: what shapes answers in those under test."""

    def __init__(self, flags: Sequence[str], log: Path, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.port = free_port()
        arguments = ["serve", MODEL, "--host", HOST, "--port", str(self.port), *flags]
        self.process = SimulatorProcess(arguments, log)

    async def text(self, body: dict[str, Any]) -> str:
        """See `Oracle`. A request gets the same text streamed and whole."""
        url = f"http://{HOST}:{self.port}/v1/chat/completions"
        async with self._session.post(url, json={**body, "stream": False}) as answer:
            answer.raise_for_status()
            whole = await answer.json()
            return str(whole["choices"][0]["message"]["content"] or "")

    def close(self) -> None:
        """End it."""
        self.process.kill()
