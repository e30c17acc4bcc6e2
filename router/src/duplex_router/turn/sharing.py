"""Where the own ledger knows too little of a conversation, the one that routers share is asked before a turn begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from duplex_router.ledger.history import History
from duplex_router.ledger.ledger import Entry

from .core import Core
from .offer import Offer
from .subject import Subject

NEW_PARTS: Final = 2
"""A turn that continues the one that is known adds a reply and a message; what lacks more went on elsewhere."""


def knows_enough(core: Core, subject: Subject, history: History) -> bool:
    """Tell whether the own ledger has the last turn of this conversation, or nothing is wanted of any."""
    if not subject.document.policy.bidirectional or subject.request.whole:
        return True
    match = core.ledger.match(history, subject.tenant, core.offers.why_not)
    unknown = history.parts(len(history.marks)) - history.parts(match.depth)
    return match.entry is not None and unknown <= NEW_PARTS


def look_further(core: Core, subject: Subject, done: Callable[[Entry | None], None]) -> bool:
    """Ask the shared ledger if there is one and it may know more; true: `done` hears what it has."""
    history, shared = subject.history, core.shared
    if shared is None or history is None or not history.marks or knows_enough(core, subject, history):
        return False
    shared.find(history, subject.tenant, done)
    return True


def find_offer(core: Core, subject: Subject, found: Entry | None) -> Offer:
    """Return what to offer, with another router's entry among the candidates. The source has its turn counted."""
    if found is not None and not core.ledger.same_boot(found):
        if core.shared is not None and found.published:
            core.shared.give_back(found, replaced=True)
        found = None
    if found is not None and found.published:
        core.ledger.borrow(found)
    elif found is not None:
        core.ledger.add(found)
    offer = core.offers.find(subject.request, subject.history, subject.tenant, subject.document)
    if offer.source is not None:
        offer.source.turns += 1
        core.ledger.use(offer.source)
    if found is not None and found.published:
        core.ledger.stop_lending(found)
        core.keeper.flush()
    return offer
