"""What the admin side keeps besides the counters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from duplex_router.turn.core import Core

from .recent import RecentReuse


@dataclass(slots=True)
class CanaryState:
    """What the canary last found of one revision. `last_success` is in Unix time; `failures` are those in a row.

    `served_tokens`: how many had come through the revision by then, from clients too.
    """

    last_success: float | None = None
    reused: bool | None = None
    failures: int = 0
    served_tokens: int = 0
    message: str = ""


@dataclass(slots=True)
class TransportState:
    """What the engines' metrics say of transfers between them. `backend` None: no engine has said."""

    backend: str | None = None
    bytes_by_revision: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class AdminState:
    """Shared by the admin endpoints and the tasks that fill it in."""

    core: Core
    pod_name: str
    started: float
    serves: Callable[[], bool]
    canaries: dict[str, CanaryState] = field(default_factory=dict)
    """By revision; only those of the present document."""
    transport: TransportState = field(default_factory=TransportState)
    draining: bool = False
    wall_clock: Callable[[], float] = time.time
    """Unix time."""
    recent: RecentReuse = field(init=False)

    def __post_init__(self) -> None:
        """Begin the window at the router's start."""
        self.recent = RecentReuse(self.started)
