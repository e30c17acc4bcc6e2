"""What reuse came to in a turn: for the client's headers, the counters, and the explanation."""

from __future__ import annotations

from typing import Final

from duplex_connector.contract import Header
from duplex_connector.proof import Outcome as ProofOutcome
from duplex_router.ledger.fates import TENANT
from duplex_router.wire.heads import Headers
from duplex_router.wire.prefill import PrefillAnswer

from .counters import Counters
from .offer import Offer

MISS: Final = "miss"
REJECTED: Final = "rejected"
_FULL: Final = ProofOutcome.FULL.value
_PARTIAL: Final = ProofOutcome.PARTIAL.value
_REUSE: Final = Header.REUSE.encode()
_TOKENS: Final = Header.TOKENS.encode()
_REQUEST_ID: Final = Header.REQUEST_ID.encode()


class Outcome:
    """`kind`: full, partial, miss or rejected. Tokens of this prompt: pulled from decode, and computed by prefill."""

    __slots__ = ("computed", "kind", "local", "proved", "pulled", "reason")

    def __init__(
        self,
        kind: str = MISS,
        reason: str = "",
        *,
        pulled: int = 0,
        computed: int = 0,
        local: int = 0,
        proved: int = 0,
    ) -> None:
        self.kind = kind
        self.reason = reason
        self.pulled = pulled
        self.computed = computed
        self.local = local
        self.proved = proved

    def headers(self, request_id: bytes) -> Headers:
        """Return the headers that a client gets with every answer of a turn.

        That another tenant has the same history is counted and explained to the operator, never told to a client.
        """
        kind, reason = (MISS, "") if self.reason == TENANT else (self.kind, self.reason)
        reuse = f"{kind};reason={reason}" if reason and kind == REJECTED else kind
        return (
            (_REUSE, reuse.encode()),
            (_TOKENS, b"pulled=%d,computed=%d" % (self.pulled, self.computed)),
            (_REQUEST_ID, request_id),
        )

    def count(self, counters: Counters, *, eligible: bool) -> None:
        """Add a finished turn to the counters."""
        counters.pulled_tokens += self.pulled
        counters.computed_tokens += self.computed
        counters.eligible += eligible
        if self.kind == _FULL:
            counters.full += 1
        elif self.kind == _PARTIAL:
            counters.partial += 1
        elif self.kind == REJECTED:
            counters.rejected[self.reason] += 1
        else:
            counters.missed += 1


NOTHING: Final = Outcome()
"""Of a turn that has found nothing so far."""


def outcome_of(offer: Offer, answer: PrefillAnswer | None, *, offered: bool) -> Outcome:
    """Say what came of an offer. `answer` is None where no prefill engine answered (yet, or at all).

    A guarded engine reports it. A stock one only tells its cached tokens, which are then taken as pulled.
    """
    reason = offer.reason
    if answer is None:
        return Outcome(REJECTED if reason else MISS, reason)
    cached = answer.cached_tokens or 0
    computed = max(answer.prompt_tokens - cached, 0)
    report = answer.report
    if not offered:
        return Outcome(REJECTED if reason else MISS, reason, computed=computed, local=cached)
    if report is None:
        # A stock engine that pulled says nothing about what was there already.
        kind = _PARTIAL if cached else REJECTED
        return Outcome(kind, "" if cached else "not-pulled", pulled=cached, computed=computed)
    outcome = Outcome(
        REJECTED,
        report.reason or "not-pulled",
        pulled=report.pulled,
        computed=report.computed if report.computed is not None else computed,
        local=report.local,
        proved=report.proved,
    )
    if report.pulled > 0:
        outcome.kind, outcome.reason = report.outcome or _PARTIAL, report.reason
    return outcome
