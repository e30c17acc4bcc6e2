"""Which of several engines gets a leg: the least loaded, or the one a conversation used last while its load allows it.

Affinity with bounded loads: it saves work only as long as nobody waits for it. An engine that has just joined others
gets its share bit by bit, since its caches and connections are cold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from .engines import Engine

AFFINITY_FACTOR: Final = 1.25
"""Affinity holds up to this times the mean load, plus the load of the leg itself."""

SLOW_START_SECONDS: Final = 30.0
LEAST_SHARE: Final = 0.1

HELD_LOAD: Final = 2.0
"""What a KV cache full of holds counts for, in streams: between equals the emptier one, never against real load."""


def share_of(engine: Engine, now: float) -> float:
    """Return which part of its full share an engine gets: a new one 0.1, growing to 1 over 30 seconds."""
    age = now - engine.ready_since
    return 1.0 if age >= SLOW_START_SECONDS else max(age / SLOW_START_SECONDS, LEAST_SHARE)


def choose(able: Sequence[Engine], loads: Sequence[float], last: str, unit: float, now: float) -> Engine:
    """Choose among `able`, of which there is at least one, by their loads. `unit`: the load that the new leg brings."""
    bound = AFFINITY_FACTOR * sum(loads) / len(loads) + 2 * unit if last else 0.0
    chosen, least = able[0], math.inf
    for engine, load in zip(able, loads, strict=True):
        # What it would have with the new leg, as if an engine with half a share had half the strength.
        laden = (load + unit) / share_of(engine, now)
        if engine.key == last and laden <= bound:
            return engine
        if laden < least:
            chosen, least = engine, laden
    return chosen


def decode_load(engine: Engine, held_tokens: int) -> float:
    """Return a decode engine's load in streams: those it answers, and a little for the KV that it holds."""
    full = held_tokens / engine.kv_tokens if engine.kv_tokens else 0.0
    return engine.legs + HELD_LOAD * full
