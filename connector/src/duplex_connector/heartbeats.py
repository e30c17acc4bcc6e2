"""Until when a prefill engine surely keeps a hand-off that decode has not read yet.

Prefill frees a hand-off when its lease ends, and each heartbeat from decode extends the lease; but no answer says that
a heartbeat came in time. A decode engine that stalled, or a leg that came late, would read blocks that are another
request's by now, and answer wrongly with status 200 (aws-do-eks#84 saw 8 of 42). So decode works out the deadline
that prefill has, and computes the prompt itself when it is past. Times are of one monotonic clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Collection


class Heartbeats:
    """The heartbeats sent for hand-offs that wait to be read, each named by its peer's engine id and request id."""

    def __init__(self, extension: float) -> None:
        """`extension`: how far a heartbeat moves the deadline, from when it is sent."""
        self._extension = extension
        self._sent: dict[tuple[str, str], list[float]] = {}

    def sent(self, engine_id: str, request_id: str, now: float) -> None:
        """Note a heartbeat."""
        self._sent.setdefault((engine_id, request_id), []).append(now)

    def keep_only(self, waiting: Collection[tuple[str, str]]) -> None:
        """Forget all hand-offs but these, by engine id and request id."""
        self._sent = {name: moments for name, moments in self._sent.items() if name in waiting}

    def deadline(self, engine_id: str, request_id: str, granted: float) -> float:
        """Return until when the peer keeps the request's blocks, which it first granted until `granted`.

        A heartbeat that was sent after the deadline of its time revives nothing.
        """
        deadline = granted
        for moment in self._sent.get((engine_id, request_id), ()):
            if moment < deadline:
                deadline = max(deadline, moment + self._extension)
        return deadline
