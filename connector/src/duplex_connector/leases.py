"""Whether a read of a peer's blocks lies within its lease: asked before it begins, and again when it has ended.

A read that begins in time may still end late: the holder, the reader or the network stood still. By then the holder
may have given the blocks to another request, and nothing in the transfer says so: it succeeds. So what came after the
lease counts as a failed load, and the engine computes instead. Deadlines are of the reader's clock, in seconds.
"""

from __future__ import annotations

from .contract import HANDLE_EXPIRY_MARGIN_SECONDS, LATE_READ_MARGIN_SECONDS


def may_begin(now: float, deadline: float) -> bool:
    """Return whether there is time enough for a read."""
    return now + HANDLE_EXPIRY_MARGIN_SECONDS < deadline


def ended_in_time(now: float, deadline: float) -> bool:
    """Return whether the holder surely still kept the blocks when the read ended."""
    return now + LATE_READ_MARGIN_SECONDS < deadline
