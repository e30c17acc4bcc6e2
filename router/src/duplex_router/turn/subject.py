"""What one turn is about: the request, by whose right and by what policy it runs. Fixed from its start."""

from __future__ import annotations

from dataclasses import dataclass, field

from duplex_connector.contract import ConnectorKind
from duplex_router.fleet.document import FleetDocument
from duplex_router.ledger.history import History
from duplex_router.ledger.reading import read_history
from duplex_router.wire.inference import Inference

from .trace import TraceContext


@dataclass(slots=True)
class Subject:
    """Making one reads the history and raises RequestError where no engine should see the request.

    `headers`: the header lines that both legs carry. `revision`: the one that the turn must run on; empty: any.
    """

    request: Inference
    document: FleetDocument
    tenant: bytes
    headers: bytes
    request_id: bytes
    revision: str = ""
    trace: TraceContext | None = None
    history: History | None = field(init=False)
    guarded: bool = field(init=False)
    """Whether the engines prove what they pull."""
    shares_token_ids: bool = field(init=False)
    """Whether decode is given prefill's token ids. All engines that the guarded connector runs on take them."""
    ttl: float = field(init=False)
    """For how many seconds decode shall hold the finished turn, before any renewal; 0: not at all."""

    def __post_init__(self) -> None:
        """Read the history."""
        self.guarded = self.document.model.connector is ConnectorKind.GUARDED
        self.history = read_history(self.request, proved=self.guarded)
        if not (self.guarded or self.request.tells_handle or self.request.whole):
            # A stock engine that is handed KV holds the turn's in its turn, and here nobody could ever name that hold.
            self.request.whole = "untold-handle"
        self.shares_token_ids = self.guarded and self.request.takes_token_ids
        self.ttl = self._ttl()

    def _ttl(self) -> float:
        policy = self.document.policy
        followed = self.history is not None and bool(self.history.marks)
        told = self.request.tells_handle and (policy.streams or not self.request.stream)
        kept = policy.bidirectional and not self.request.whole and followed and told
        if not kept:
            return 0
        return policy.lease if self.guarded else policy.ttl_seconds
