"""Limits of the clients' side, and the files of keys and certificates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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


@dataclass(frozen=True, slots=True)
class CredentialSettings:
    """Files, each read again when it changes. A folder of keys is a mounted Secret.

    `api_keys`: clients must show one of these, one a line. `engine_key`: what engines were started with (--api-key).
    `certificate`, `private_key`: TLS towards clients. `engine_ca`: whom to trust where an engine's URL is https, else
    the system's; `engine_certificate`, `engine_private_key`: what to show them (mutual TLS). `engine_tls`: all engines
    speak TLS, whatever names them; `engine_name`: the name in their certificates, where that is not their address.
    """

    api_keys: Path | None = None
    engine_key: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    engine_ca: Path | None = None
    engine_certificate: Path | None = None
    engine_private_key: Path | None = None
    engine_tls: bool = False
    engine_name: str = ""
