"""One request inside the engine, from arrival to its last token."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from duplex_connector.turn import Turn

from .pull import Pull
from .sequence import SequenceKV


class Status(StrEnum):
    """Where a request stands or how it ended; only STOPPED and LENGTH may leave a hold."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    STOPPED = "stop"
    LENGTH = "length"
    ABORTED = "abort"
    ERROR = "error"


@dataclass
class Sampling:
    """When to stop. `stop`: strings, which vLLM finds outside the engine and answers by aborting the request.

    `forced`: the tokens of the reply, as a grammar forces them; it ends after them.
    """

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    forced: tuple[int, ...] = ()


@dataclass
class EngineRequest:
    """`kv`: its blocks and tokens. `params`: a copy of its kv_transfer_params, which the connector works on.

    `external`: tokens loaded from a peer in the current admission. `cached`: local and loaded tokens of the first one.
    `turn`: the guarded connector's state. `preempted`: its blocks were taken for another; it queues again.
    `tracked`: whether the connector's worker knows the request, without which it ends no hold of it.
    `admissions`: how often it was given blocks, so that a step knows whether they are still those it began with.
    """

    request_id: str
    kv: SequenceKV
    prompt_tokens: int
    sampling: Sampling
    params: dict[str, Any] | None = None
    status: Status = Status.WAITING
    external: int = 0
    local: int = 0
    cached: int | None = None
    output: list[int] = field(default_factory=list)
    turn: Turn | None = None
    marked: bool = False
    tracked: bool = False
    preempted: bool = False
    admissions: int = 0
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    pull: Pull | None = None
    arrived_at: float = 0.0
    first_token_at: float = 0.0

    @property
    def ended(self) -> bool:
        """Return whether the request is over."""
        return self.status not in {Status.WAITING, Status.LOADING, Status.RUNNING}


@dataclass(frozen=True)
class Token:
    """One generated token, and with the last one how the request ended and what it left for a peer."""

    token_id: int
    finish: Status | None = None
    stop_reason: int | str | None = None
    params: dict[str, Any] | None = None
