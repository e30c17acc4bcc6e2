"""What the answer to a request must be: what one plain engine, alone and undisturbed, says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from .loopback import HOST, free_port

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
        command = [
            sys.executable,
            "-m",
            "duplex_simulator",
            "serve",
            MODEL,
            "--host",
            HOST,
            "--port",
            str(self.port),
            *flags,
        ]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

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
        self.process.wait(30)
