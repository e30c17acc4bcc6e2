"""Which handle, if any, the prefill leg of a turn carries."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from duplex_router.fleet.document import FleetDocument
from duplex_router.fleet.fleet import Fleet
from duplex_router.fleet.terms import terms_of
from duplex_router.ledger.boundary import unproved_tokens
from duplex_router.ledger.fates import Fate
from duplex_router.ledger.history import History
from duplex_router.ledger.ledger import Entry, Ledger, Match
from duplex_router.wire.inference import Inference

from .templates import Templates


class Rejection(StrEnum):
    """Why a router offers no handle though it might have had one. A closed list: metrics count by it."""

    DISABLED = "disabled"
    UNSUPPORTED_REQUEST = "unsupported-request"
    UNSUPPORTED_INPUT = "unsupported-input"
    TENANT = "tenant"
    EXPIRED = "expired"
    USED = "used"
    OVER_BUDGET = "over-budget"
    BOOT = "boot"
    ENGINE_GONE = "engine-gone"
    DRAINING = "draining"
    USELESS = "useless"
    REVISION = "revision"
    UNPROVED = "unproved"
    SHARED_HISTORY = "shared-history"
    UNSTABLE_TEMPLATE = "unstable-template"
    UNSUPPORTED_GROUPS = "unsupported-groups"
    PREFILL_FAILED = "prefill-failed"
    BROKEN_PAIR = "broken-pair"


class Offer:
    """What was found for a turn.

    `source`: the entry that shares most history, whether or not it is offered. `params`: what the prefill leg carries
    of it, None where nothing is offered. `reason`: why not; empty where the ledger has nothing at all.
    """

    __slots__ = ("depth", "params", "reason", "source")

    def __init__(
        self,
        source: Entry | None = None,
        depth: int = 0,
        params: bytes | None = None,
        reason: str = "",
    ) -> None:
        self.source = source
        self.depth = depth
        self.params = params
        self.reason = reason


NO_OFFER: Final = Offer()
"""Before anything is looked for."""


class Offers:
    """Finds what to offer."""

    def __init__(self, fleet: Fleet, ledger: Ledger, templates: Templates) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._templates = templates

    def find(self, request: Inference, history: History | None, tenant: bytes, document: FleetDocument) -> Offer:
        """Look a request's history up and say what to offer.

        On stock engines an offered handle leaves the ledger here: whatever comes of it, it is never offered again.
        """
        terms = terms_of(document)
        if not terms.bidirectional:
            return Offer(reason=Rejection.DISABLED)
        if request.whole or history is None:
            return Offer(reason=Rejection.UNSUPPORTED_REQUEST if request.whole else Rejection.UNSUPPORTED_INPUT)
        match = self._ledger.match(history, tenant, self.why_not)
        if match.entry is None:
            return Offer(reason=match.reason)
        if terms.guarded:
            params = match.entry.handle.offer(terms.threshold_tokens)
            return Offer(match.entry, match.depth, params)
        return self._from_stock(request, history, match, terms.block_size)

    def why_not(self, entry: Entry) -> str:
        """Say why an entry must not be offered now; empty where it may."""
        engine = self._fleet.engines.get(entry.engine)
        if engine is None or not engine.serving:
            return Rejection.DRAINING if engine is not None and engine.draining else Rejection.ENGINE_GONE
        return "" if self._fleet.complete(entry.revision) else Rejection.REVISION

    def _from_stock(self, request: Inference, history: History, match: Match, block_size: int) -> Offer:
        entry = match.entry
        if entry is None:
            return Offer(reason=match.reason)
        slack = self._templates.slack(entry.revision, request, history)
        if slack is None:
            return Offer(entry, match.depth, reason=Rejection.UNSTABLE_TEMPLATE)
        boundary = unproved_tokens(self._ledger, match, history)
        tokens = max(boundary.tokens - slack, 0) // block_size * block_size
        params = entry.handle.trimmed(tokens, block_size) if tokens else None
        if params is None:
            unfit = Rejection.UNSUPPORTED_GROUPS if tokens else Rejection.UNPROVED
            return Offer(entry, match.depth, reason=boundary.reason or unfit)
        self._ledger.take(entry, Fate.USED)
        return Offer(entry, match.depth, params)
