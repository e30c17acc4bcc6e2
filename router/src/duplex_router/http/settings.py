"""Limits of the clients' side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Sizes in bytes, times in seconds."""

    max_body_bytes: int = 64 * 1024 * 1024
    max_turns: int = 8192
    """Turns under way at once; beyond it the answer is 503 at once."""
    head_seconds: float = 15.0
    """From a request's first byte to the end of its head."""
    body_silence_seconds: float = 30.0
    body_seconds: float = 300.0
    idle_seconds: float = 75.0
    """Between two requests of a connection."""
    write_silence_seconds: float = 120.0
    """How long a client may take nothing of its answer."""
