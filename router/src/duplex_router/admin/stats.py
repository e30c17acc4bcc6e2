"""`/stats`: what the operator reads of a router, bounded; it names no conversation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from duplex_connector.contract import ConnectorKind, Role
from duplex_router.fleet.engines import Engine

from .state import AdminState, CanaryState

MAX_REASONS = 32
MAX_PAIRS = 32
MAX_ENGINES = 32
MAX_LOADS = 1024


def stats(state: AdminState) -> dict[str, Any]:
    """Return the statistics since the router started."""
    core = state.core
    fleet, ledger, counters = core.fleet, core.ledger, core.counters
    document = fleet.document
    revisions = [revision.name for revision in document.revisions] if document else []
    return {
        "fleetVersion": list(document.version) if document else None,
        "fleetMessage": fleet.broken,
        "model": document.model.name if document else "",
        "pod": state.pod_name,
        "uptimeSeconds": round(core.clock() - state.started, 3),
        "draining": state.draining,
        "revisions": {
            name: {
                "prefillReady": len(fleet.ready(name, Role.PREFILL)),
                "decodeReady": len(fleet.ready(name, Role.DECODE)),
                "servedTokens": counters.revision(name).served_tokens,
                "turns": counters.revision(name).turns,
                "bytesMoved": state.transport.bytes_by_revision[name],
                "canary": _canary(state.canaries.get(name, CanaryState())),
            }
            for name in revisions
        },
        "turns": counters.turns,
        "inFlight": counters.in_flight,
        "waiting": core.admission.waiting,
        "reuse": {
            "eligible": counters.eligible,
            "full": counters.full,
            "partial": counters.partial,
            "missed": counters.missed,
            "savedPrefillTokens": counters.pulled_tokens,
            "rejected": dict(counters.rejected.most_common(MAX_REASONS)),
        },
        "recentReuse": _recent(state),
        "retention": _retention(state),
        "loads": _loads(state),
        "kv": _kv(fleet.engines.values()),
        "holds": len(ledger),
        "transport": {
            "backend": state.transport.backend,
            "bytesMoved": state.transport.bytes_by_revision.total(),
        },
        "brokenPairs": _broken_pairs(state),
    }


def _canary(canary: CanaryState) -> dict[str, Any]:
    return {
        "lastSuccess": canary.last_success,
        "reused": canary.reused,
        "failures": canary.failures,
        "message": canary.message,
    }


def _recent(state: AdminState) -> dict[str, Any]:
    """Return what reuse came to within the last minutes, and how many seconds that are."""
    seconds, reuse = state.recent.since(state.core.counters, state.core.clock())
    return {
        "seconds": round(seconds),
        "eligible": reuse.eligible,
        "full": reuse.full,
        "partial": reuse.partial,
        "rejected": dict(reuse.rejected.most_common(MAX_REASONS)),
    }


def _loads(state: AdminState) -> dict[str, dict[str, int]]:
    """Return what this router has on each engine that it uses or holds something on, by pod, the most first."""
    ledger = state.core.ledger
    loads = {
        engine.name: {
            "legs": engine.legs,
            "tokens": ledger.held_tokens(engine.key),
            "value": ledger.live_tokens(engine.key),
        }
        for engine in state.core.fleet.engines.values()
    }
    used = sorted((item for item in loads.items() if any(item[1].values())), key=lambda item: -item[1]["tokens"])
    return dict(used[:MAX_LOADS])


def _retention(state: AdminState) -> dict[str, Any]:
    """Return what decode engines hold for this router; `engines` has those that hold most, each with its budget.

    `renewable`: whether the engines take longer leases; stock ones do not, and hold until their own ttl at most.
    """
    core = state.core
    ledger, document = core.ledger, core.fleet.document
    percent = document.policy.retention_percent if document is not None else 0
    engines = [
        {
            "name": engine.name,
            "conversations": ledger.held_conversations(engine.key),
            "tokens": ledger.held_tokens(engine.key),
            "budgetTokens": engine.kv_tokens * percent // 100 if engine.kv_tokens is not None else None,
            "bytesPerToken": engine.kv_bytes_per_token,
        }
        for engine in core.fleet.engines.values()
        if engine.role is Role.DECODE
    ]
    engines.sort(key=lambda each: -int(each["tokens"] or 0))
    return {
        "conversations": len(ledger),
        "tokens": ledger.tokens,
        "renewable": document is not None and document.model.connector is ConnectorKind.GUARDED,
        "engines": engines[:MAX_ENGINES],
    }


def _broken_pairs(state: AdminState) -> list[dict[str, Any]]:
    """Return the pairs that cannot reach each other, longest broken first, by pod; restarting one side mends them."""
    core = state.core
    now, wall = core.clock(), state.wall_clock()

    def name(key: str) -> str:
        engine = core.fleet.engines.get(key)
        return (engine.pod if engine is not None else "") or key

    return [
        {
            "prefill": name(pair.prefill),
            "decode": name(pair.decode),
            "since": round(wall - (now - pair.since), 3),
            "failures": sum(pair.failures),
        }
        for pair in core.fleet.pairs.broken()[:MAX_PAIRS]
    ]


def _kv(engines: Iterable[Engine]) -> dict[str, int | None]:
    """Return the largest bytes of KV per token that an engine says, and the tokens that decode engines can keep."""
    present = list(engines)
    sizes = [engine.kv_bytes_per_token for engine in present if engine.kv_bytes_per_token]
    return {
        "bytesPerToken": max(sizes, default=None),
        "decodeTokens": sum(engine.kv_tokens or 0 for engine in present if engine.role is Role.DECODE),
    }
