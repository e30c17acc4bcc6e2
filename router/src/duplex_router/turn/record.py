"""What is kept of a finished turn, for `/explain`, the access log and traces; put into words by those who show it."""

from __future__ import annotations

from typing import Final

from duplex_router.ledger.latest import Latest

from .outcome import NOTHING, Outcome
from .trace import TraceContext

MAX_EXPLAINED: Final = 1024


class LegRecord:
    """One upstream request. Times are the router's clock; `engine` its name; `what`: how it failed, if it did."""

    __slots__ = ("began", "ended", "engine", "name", "what")

    def __init__(self, name: str, engine: str, began: float, ended: float = 0.0, what: str = "") -> None:
        self.name = name
        self.engine = engine
        self.began = began
        self.ended = ended
        self.what = what

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


class SharedLookup:
    """What asking the ledger of other routers came to: `what` is empty where it was not asked."""

    __slots__ = ("seconds", "what")

    def __init__(self, what: str = "", seconds: float = 0.0) -> None:
        self.what = what
        self.seconds = seconds


NOT_ASKED: Final = SharedLookup()


class TurnRecord:
    """One turn, from its start on. `status` 0: not over. `first_byte` 0: the client got none.

    `source`: engine of the handle that shared most history, empty where there was none; `matched_depth` and
    `history_depth` in marks. No entry is kept here: a handle of a long conversation is large.
    """

    __slots__ = (
        "began", "completion_tokens", "ended", "first_byte", "history_depth", "legs", "lookup", "matched_depth",
        "outcome", "path", "request_id", "revision", "source", "status", "stream", "trace",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        began: float,
        path: str = "",
        trace: TraceContext | None = None,
        *,
        stream: bool = False,
        outcome: Outcome = NOTHING,
    ) -> None:
        self.request_id = request_id
        self.began = began
        self.path = path
        self.trace = trace
        self.stream = stream
        self.revision = ""
        self.status = 0
        self.ended = 0.0
        self.first_byte = 0.0
        self.source = ""
        self.matched_depth = 0
        self.history_depth = 0
        self.completion_tokens = 0
        self.outcome = outcome
        self.lookup = NOT_ASKED
        self.legs: list[LegRecord] = []

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


class Explanations:
    """The latest turns by request id; bounded."""

    def __init__(self, limit: int = MAX_EXPLAINED) -> None:
        self._records: Latest[str, TurnRecord] = Latest(limit)

    def add(self, record: TurnRecord) -> None:
        """Keep a turn's record."""
        self._records.set(record.request_id, record)

    def get(self, request_id: str) -> TurnRecord | None:
        """Return a turn's record, or None where it is not, or no longer, known."""
        return self._records.get(request_id)
