"""A ledger that several routers share, as turns and the keeper see it: asked by callback, never waited for.

What is published there may be read by other routers at any time. So nothing published is released, and on engines
whose handles are used up by reading nothing published is offered, before the store has confirmed that nobody else
reads it or will. Where it cannot confirm, the hold lapses by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from duplex_router.ledger.history import History
from duplex_router.ledger.ledger import Entry

from .counters import Histogram


@dataclass(frozen=True, slots=True)
class SharedView:
    """What is to be seen of a shared ledger from outside. `routers`: how many share it; `seconds`: of look-ups."""

    up: bool
    why_down: str
    routers: int
    seconds: Histogram
    lookups: Mapping[str, int]
    claims: Mapping[str, int]
    events: Mapping[str, int]


class SharedLedger(Protocol):
    """See the module. Callbacks are never called before the method that takes them has returned."""

    def find(self, history: History, tenant: bytes, done: Callable[[Entry | None], None]) -> None:
        """Look for the handle that shares most of a history, and call `done` within some 20 ms.

        On guarded engines the entry is borrowed, to be given back; on stock ones it is the caller's alone from then.
        """
        ...

    def claim(self, entry: Entry, done: Callable[[bool], None]) -> None:
        """Ask for the sole use of a published entry that the caller has taken from its ledger.

        False: another router has it, or nobody can say: then it is neither used nor released.
        """
        ...

    def give_back(self, entry: Entry, *, replaced: bool) -> None:
        """Say that no pull of a borrowed entry runs here any more; `replaced`: there is a newer one in its place."""
        ...

    def publish(self, entry: Entry) -> None:
        """Let others find an entry of this router's ledger, soon but not at once; also what has changed of it."""
        ...

    def withdraw(self, entries: Iterable[Entry], free: Callable[[list[Entry]], None]) -> None:
        """Let nobody find these any more; `free` is called with those that nobody reads, as soon as that is sure."""
        ...

    @property
    def routers(self) -> int:
        """How many routers share it, this one included: each may use an equal part of the budget."""
        ...

    def view(self) -> SharedView:
        """Return what is to be seen of it now."""
        ...
