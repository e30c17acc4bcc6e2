"""W3C trace context (Trace Context, level 1): whose trace a turn belongs to, and what its engines get of it."""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass
from typing import Final

_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z")
_SAMPLED: Final = 1
_LENGTH: Final = 55
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A turn's span within a trace, ids in hexadecimal. `parent`: the client's span, empty where the trace is ours."""

    trace_id: bytes
    span_id: bytes
    parent: bytes = b""

    def header(self) -> bytes:
        """Return the traceparent whose parent is this turn."""
        return b"00-%b-%b-01" % (self.trace_id, self.span_id)


def read_traceparent(value: bytes) -> bytes:
    """Return a client's traceparent as it may be passed on; empty where it is malformed, and so ignored (3.2.2)."""
    found = _TRACEPARENT.match(value)
    if found is None or found[1] == b"ff" or found[2] == _NO_TRACE or found[3] == _NO_SPAN:
        return b""
    return b"" if found[1] == b"00" and len(value) != _LENGTH else value


def begin_trace(traceparent: bytes, sample: float) -> TraceContext | None:
    """Return the context of a turn that is to be traced: the client's trace where it is sampled, else a share of ours.

    `sample`: the share of turns without a trace of their own that get one, 0 to 1.
    """
    found = _TRACEPARENT.match(traceparent) if traceparent else None
    if found is not None:
        sampled = int(found[4], 16) & _SAMPLED
        return TraceContext(found[2], os.urandom(8).hex().encode(), found[3]) if sampled else None
    if random.random() >= sample:  # noqa: S311 - a choice of what to trace, no secret
        return None
    return TraceContext(os.urandom(16).hex().encode(), os.urandom(8).hex().encode())
