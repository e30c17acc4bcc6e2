"""What one turn is about: the request, by whose right and by what policy it runs. Fixed from its start."""

from __future__ import annotations

from duplex_router.fleet.document import FleetDocument
from duplex_router.fleet.terms import terms_of
from duplex_router.ledger.history import History
from duplex_router.ledger.reading import read_history
from duplex_router.wire.inference import Inference

from .trace import TraceContext


class Subject:
    """Making one reads the history and raises RequestError where no engine should see the request.

    `headers`: the header lines that both legs carry. `revision`: the one that the turn must run on; empty: any.
    """

    __slots__ = (
        "document", "guarded", "headers", "history", "request", "request_id", "revision", "shares_token_ids",
        "tenant", "terms", "trace", "ttl",
    )  # fmt: skip

    def __init__(
        self,
        request: Inference,
        document: FleetDocument,
        tenant: bytes,
        headers: bytes,
        request_id: bytes,
        *,
        revision: str = "",
        trace: TraceContext | None = None,
    ) -> None:
        self.request = request
        self.document = document
        self.tenant = tenant
        self.headers = headers
        self.request_id = request_id
        self.revision = revision
        self.trace = trace
        self.terms = terms_of(document)
        self.guarded = self.terms.guarded
        """Whether the engines prove what they pull."""
        self.history: History | None = read_history(request, proved=self.guarded)
        if not (self.guarded or self.request.tells_handle or self.request.whole):
            # A stock engine that is handed KV holds the turn's in its turn, and here nobody could ever name that hold.
            self.request.whole = "untold-handle"
        self.shares_token_ids = self.guarded and request.takes_token_ids
        """Whether decode is given prefill's token ids. All engines that the guarded connector runs on take them."""
        self.ttl: float = self._ttl()
        """For how many seconds decode shall hold the finished turn, before any renewal; 0: not at all."""

    def _ttl(self) -> float:
        terms = self.terms
        followed = self.history is not None and bool(self.history.marks)
        told = self.request.tells_handle and (terms.streams or not self.request.stream)
        kept = terms.bidirectional and not self.request.whole and followed and told
        return terms.hold_seconds if kept else 0.0
