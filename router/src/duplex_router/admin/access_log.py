"""The access log: one JSON line a turn, written beside the event loop; a share of the good ones, and every bad one."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from duplex_router.turn.record import TurnRecord

from .aside import Aside

FLUSH_SECONDS = 0.5
MAX_WAITING = 16384

log = logging.getLogger(__name__)


class AccessLog(Aside):
    """`path` None: standard output. `sample`: the share of turns answered with 200 that are written, 0 to 1."""

    def __init__(self, path: Path | None, sample: float, wall_ahead: Callable[[], float]) -> None:
        super().__init__(wall_ahead, seconds=FLUSH_SECONDS, most=MAX_WAITING)
        self._path = path
        self._sample = sample

    def observe(self, record: TurnRecord) -> None:
        """See `Aside`."""
        if record.status == HTTPStatus.OK and random.random() >= self._sample:  # noqa: S311 - no secret
            return
        self._keep(record)

    def flush(self) -> None:
        """See `Aside`."""
        ahead = self._wall_ahead()
        lines = []
        while self._waiting:
            lines.append(msgspec.json.encode(line_of(self._waiting.popleft(), ahead)) + b"\n")
        if not lines:
            return
        try:
            if self._path is None:
                sys.stdout.buffer.write(b"".join(lines))
                sys.stdout.buffer.flush()
            else:
                with self._path.open("ab") as file:  # opened anew each time, so that it can be rotated
                    file.write(b"".join(lines))
        except OSError as error:
            self.dropped += len(lines)
            log.error("the access log cannot be written: %s", error)  # noqa: TRY400 - the message says it all


def line_of(record: TurnRecord, wall_ahead: float) -> dict[str, Any]:
    """Return a turn's line. Times in seconds; `time` is when the turn ended."""
    outcome = record.outcome
    ended = datetime.fromtimestamp(record.ended + wall_ahead, UTC)
    line: dict[str, Any] = {
        "time": ended.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "requestId": record.request_id,
        "path": record.path,
        "stream": record.stream,
        "status": record.status,
        "seconds": round(record.seconds, 6),
        "firstByteSeconds": round(record.first_byte - record.began, 6) if record.first_byte else None,
        "reuse": outcome.kind,
        "reason": outcome.reason,
        "pulledTokens": outcome.pulled,
        "computedTokens": outcome.computed,
        "completionTokens": record.completion_tokens,
        "revision": record.revision,
        "legs": [
            {"leg": leg.name, "engine": leg.engine, "seconds": round(leg.seconds, 6) if leg.ended else None}
            | ({"failed": leg.what} if leg.what else {})
            for leg in record.legs
        ],
    }
    if record.trace is not None:
        line["traceId"] = record.trace.trace_id.decode()
    return line
