"""The end of a turn's books: counters, and the record that outlives it."""

from __future__ import annotations

from typing import Final

from duplex_router.wire.inference import Endpoint
from duplex_router.wire.reply import Observer

from .core import Core
from .legs import OK
from .record import TurnRecord
from .subject import Subject

_NAMES: Final = {endpoint: endpoint.value for endpoint in Endpoint}


def close_books(core: Core, subject: Subject, record: TurnRecord, observer: Observer | None, status: int) -> None:
    """Count a turn that has ended with this HTTP status, and hand its record on."""
    record.status, record.ended = status, core.clock()
    record.trace = subject.trace
    record.path, record.stream = subject.request.endpoint, subject.request.stream
    history = subject.history
    if history is not None:
        record.history_depth = history.parts(len(history.marks))
        record.matched_depth = history.parts(record.matched_depth)
    usage = observer.usage if observer is not None else None
    record.completion_tokens = (usage.completion_tokens or 0) if usage is not None else 0
    core.counters.in_flight -= 1
    core.counters.answers[status] += 1
    if status == OK:
        served = core.counters.revision(record.revision)
        served.turns += 1
        served.served_tokens += record.completion_tokens if usage is not None else 1
        if observer is not None and observer.handle is None and subject.ttl > 0:
            # A stop string ends a turn outside the engine, which then keeps nothing (vLLM 0.33, output_processor.py).
            used_up = not subject.guarded and record.outcome.pulled > 0
            core.counters.unheld["both" if used_up else "new"] += 1
    record.outcome.count(core.counters, eligible=bool(record.source))
    core.explanations.add(record)
    for observe in core.observers:
        observe(record)
