"""What `/sim/state` shows, so that a test can assert that nothing is left pinned and no rule was broken."""

from __future__ import annotations

from typing import Any

from .engine import Engine


def state(engine: Engine) -> dict[str, Any]:
    """Return blocks, requests, holds and broken rules of an engine."""
    holds = engine.connector.holds if engine.connector else None
    now = engine.clock.now()
    return {
        "blocks": {"total": engine.pool.count - 1, "used": engine.pool.used, "free": engine.pool.free},
        "requests": {
            "running": len(engine.scheduler.running) - engine.scheduler.loading,
            "loading": engine.scheduler.loading,
            "waiting": len(engine.scheduler.waiting),
        },
        "holds": [
            {
                "requestId": hold.request_id,
                "tokens": hold.tokens,
                "kind": "turn" if hold.turn else "hand-off",
                "secondsLeft": hold.deadline - now,
            }
            for hold in (holds.all() if holds else [])
        ],
        "holdCounts": dict(vars(holds.counts)) if holds else {},
        "corruptAnswers": engine.corrupt_answers,
        "freedReads": engine.freed_reads,
        "preemptions": engine.scheduler.preemptions,
        "dead": repr(engine.dead) if engine.dead else None,
    }
