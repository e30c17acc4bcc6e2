"""What is kept of a finished turn, for `/explain`, the access log and traces; put into words by those who show it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from .outcome import Outcome
from .trace import TraceContext

MAX_EXPLAINED = 1024


@dataclass(slots=True)
class LegRecord:
    """One upstream request. Times are the router's clock; `what`: how it ended, empty where it was answered."""

    name: str
    engine: str
    began: float
    ended: float = 0.0
    what: str = ""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


@dataclass(slots=True)
class SharedLookup:
    """What asking the ledger of other routers came to: `what` is empty where it was not asked."""

    what: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class TurnRecord:
    """One turn, from its start on. `status` 0: not over. `first_byte` 0: the client got none.

    `source`: engine of the handle that shared most history, empty where there was none; `matched_depth` and
    `history_depth` in marks. No entry is kept here: a handle of a long conversation is large.
    """

    request_id: str
    began: float
    path: str = ""
    trace: TraceContext | None = None
    stream: bool = False
    revision: str = ""
    status: int = 0
    ended: float = 0.0
    first_byte: float = 0.0
    source: str = ""
    matched_depth: int = 0
    history_depth: int = 0
    completion_tokens: int = 0
    outcome: Outcome = field(default_factory=Outcome)
    lookup: SharedLookup = field(default_factory=SharedLookup)
    legs: list[LegRecord] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


class Explanations:
    """The latest turns by request id; bounded."""

    def __init__(self, limit: int = MAX_EXPLAINED) -> None:
        self._limit = limit
        self._records: OrderedDict[str, TurnRecord] = OrderedDict()

    def add(self, request_id: str, record: TurnRecord) -> None:
        """Keep a turn's record; the oldest goes beyond the limit."""
        self._records[request_id] = record
        self._records.move_to_end(request_id)
        if len(self._records) > self._limit:
            self._records.popitem(last=False)

    def get(self, request_id: str) -> TurnRecord | None:
        """Return a turn's record, or None where it is not, or no longer, known."""
        return self._records.get(request_id)
