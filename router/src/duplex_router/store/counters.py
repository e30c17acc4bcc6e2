"""What a router counts of the store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from duplex_router.turn.counters import Histogram
from duplex_router.turn.shared import SharedView


@dataclass(slots=True)
class StoreCounters:
    """What became of look-ups and of other entries' fates; `seconds`: of look-ups that were answered."""

    lookups: Counter[str] = field(default_factory=Counter)
    claims: Counter[str] = field(default_factory=Counter)
    published: int = 0
    too_large: int = 0
    adopted: int = 0
    fenced: int = 0
    unsure: int = 0
    """Holds left to lapse because the store could not confirm that nobody reads them."""
    seconds: Histogram = field(default_factory=Histogram)

    def view(self, *, up: bool, why_down: str, routers: int) -> SharedView:
        """Return what is to be seen from outside."""
        events = {
            "published": self.published,
            "too-large": self.too_large,
            "adopted": self.adopted,
            "fenced": self.fenced,
            "left-to-lapse": self.unsure,
        }
        return SharedView(up, why_down, routers, self.seconds, self.lookups, self.claims, events)
