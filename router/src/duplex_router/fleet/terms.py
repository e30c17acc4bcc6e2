"""A fleet document's policy and model as plain values: turns look at them many times, and msgspec's types are slow."""

from __future__ import annotations

from typing import Final

from duplex_connector.contract import ConnectorKind

from .document import FleetDocument, Tenancy


class Terms:
    """What one document says.

    `guarded`: the engines prove what they pull. `hold_seconds`: how long decode is asked to hold a finished turn,
    before any renewal.
    """

    __slots__ = (
        "bidirectional", "block_size", "guarded", "hold_seconds", "margin_seconds", "model", "retention_percent",
        "streams", "tenancy", "threshold_tokens",
    )  # fmt: skip

    def __init__(self, document: FleetDocument) -> None:
        policy, model = document.policy, document.model
        self.guarded: Final[bool] = model.connector is ConnectorKind.GUARDED
        self.model: Final[str] = model.name
        self.block_size: Final[int] = model.block_size
        self.bidirectional: Final[bool] = policy.bidirectional
        self.streams: Final[bool] = policy.streams
        self.hold_seconds: Final[float] = float(policy.lease if self.guarded else policy.ttl_seconds)
        self.margin_seconds: Final[float] = float(policy.margin_seconds)
        self.threshold_tokens: Final[int] = policy.recompute_threshold_tokens
        self.retention_percent: Final[int] = policy.retention_percent
        self.tenancy: Final[Tenancy] = policy.tenancy


class _Last:
    """The document that was asked for last: nearly always the only one that is in use."""

    def __init__(self) -> None:
        self.document: FleetDocument | None = None
        self.terms: Terms | None = None


_last: Final = _Last()


def terms_of(document: FleetDocument) -> Terms:
    """Return a document's terms."""
    if _last.terms is None or document is not _last.document:
        _last.document, _last.terms = document, Terms(document)
    return _last.terms
