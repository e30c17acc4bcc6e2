"""What became of handles that are no longer offered, so that a turn that misses one can say why. Bounded."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from .latest import Latest

MAX_FATES: Final = 32_768


class Fate(StrEnum):
    """How an entry left the ledger."""

    HELD = ""
    EXPIRED = "expired"
    USED = "used"
    OVER_BUDGET = "over-budget"
    BOOT = "boot"
    ENGINE_GONE = "engine-gone"
    DRAINING = "draining"
    USELESS = "useless"
    DISABLED = "disabled"
    REPLACED = "replaced"


TENANT: Final = "tenant"
"""The history is held, or was, for another tenant: it must not be told to the one who asks."""


class Fates:
    """The fates of the latest entries, by the mark at their prompt's end."""

    def __init__(self, limit: int = MAX_FATES) -> None:
        self._known: Latest[bytes, tuple[bytes, Fate]] = Latest(limit)

    def note(self, mark: bytes, tenant: bytes, fate: Fate) -> None:
        """Keep what became of an entry."""
        self._known.set(mark, (tenant, fate))

    def why(self, marks: Sequence[bytes], tenant: bytes) -> str:
        """Return what became of the deepest entry that shared this history; empty where none did."""
        for mark in reversed(marks):
            known = self._known.get(mark)
            if known is not None:
                return known[1].value if known[0] == tenant else TENANT
        return ""
