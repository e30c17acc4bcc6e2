"""What the admin side keeps besides the counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from duplex_router.turn.core import Core


@dataclass(slots=True)
class CanaryState:
    """What the last canary found. `last_success` is in Unix time."""

    last_success: float | None = None
    reused: bool | None = None
    message: str = ""


@dataclass(slots=True)
class TransportState:
    """What the engines' metrics say of transfers between them. `backend` None: no engine has said."""

    backend: str | None = None
    bytes_moved: int = 0


@dataclass(slots=True)
class AdminState:
    """Shared by the admin endpoints and the tasks that fill it in."""

    core: Core
    pod_name: str
    started: float
    serves: Callable[[], bool]
    canary: CanaryState = field(default_factory=CanaryState)
    transport: TransportState = field(default_factory=TransportState)
    draining: bool = False
    wall_clock: Callable[[], float] = time.time
    """Unix time."""
