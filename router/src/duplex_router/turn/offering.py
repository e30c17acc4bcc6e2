"""What a turn does with the handle that it found: offers it leg by leg, and never leaves its hold unowned or unsafe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from duplex_connector.proof import SHORT_STEP, Reason
from duplex_router.fleet.engines import Engine
from duplex_router.fleet.pairs import Way
from duplex_router.ledger.fates import Fate
from duplex_router.ledger.ledger import Entry
from duplex_router.wire.prefill import PrefillAnswer

from .core import Core
from .legs import Answer, Failure
from .offer import NO_OFFER, Rejection
from .outcome import NOTHING, outcome_of
from .record import SharedLookup, TurnRecord
from .sharing import find_offer, look_further
from .subject import Subject

_PULL_FAILED: Final = Reason.PULL_FAILED.value
_DIVERGED: Final = Reason.DIVERGED.value

USELESS_HANDLE: Final = frozenset(
    each.value for each in (Reason.PULL_FAILED, Reason.EXPIRED, Reason.MALFORMED, Reason.GROUPS_DIFFER, Reason.NO_PROOF)
)
"""What a guarded prefill engine says of a handle that would not serve another turn either."""


class Offering:
    """`offer`: what was found. `live`: the next prefill leg carries it. `outcome`: what has come of it so far."""

    __slots__ = ("_core", "_pulling", "_reader", "_subject", "_told", "live", "offer", "outcome")

    def __init__(self, core: Core, subject: Subject) -> None:
        self._core, self._subject = core, subject
        self._pulling: Entry | None = None
        self._reader: Engine | None = None
        self._told = 0.0
        """Until when the engine that pulls was told that the hold lasts, at most."""
        self.offer = NO_OFFER
        self.live = False
        self.outcome = NOTHING

    def search_own(self) -> None:
        """Look for a handle where this router's ledger is the only one."""
        self._find(None)

    def search(self, record: TurnRecord, go: Callable[[], None]) -> None:
        """Look for a handle, among other routers' too where they may know more; `go` is called once it is known."""
        asked = self._core.clock()

        def found(other: Entry | None) -> None:
            record.lookup = SharedLookup("found" if other is not None else "nothing", self._core.clock() - asked)
            self._take(other, go)

        if not look_further(self._core, self._subject, found):
            self._take(None, go)

    def _find(self, other: Entry | None) -> None:
        self.offer = find_offer(self._core, self._subject, other)
        self.live = self.offer.params is not None
        self.outcome = outcome_of(self.offer, None, offered=self.live)

    def _take(self, other: Entry | None, go: Callable[[], None]) -> None:
        self._find(other)
        source, shared = self.offer.source, self._core.shared
        if source is None or shared is None or not self.live or not source.published or self._subject.guarded:
            go()
            return

        def claimed(ours: bool) -> None:  # noqa: FBT001 - a callback
            if not ours:
                self.spent()
            go()

        shared.claim(source, claimed)

    def source_name(self) -> str:
        """Return the name of the engine whose hold was matched; empty where none was."""
        source = self.offer.source
        if source is None:
            return ""
        holder = self._core.fleet.engines.get(source.engine)
        return holder.name if holder is not None else source.engine

    def over(self) -> None:
        """Say that the turn is over."""
        if self.offer.source is not None:
            self.offer.source.turns -= 1
            self._core.ledger.settle(self.offer.source)
            self._core.keeper.flush()

    @property
    def holder(self) -> str:
        """The key of the engine that the next prefill leg is to pull from; empty where it is not to pull."""
        return self.offer.source.engine if self.live and self.offer.source is not None else ""

    def affinity(self) -> tuple[str, str]:
        """Return the keys of the prefill and the decode engine that know the conversation; empty where none does."""
        source, session = self.offer.source, self._subject.request.session
        if source is not None:
            return source.prefill, source.engine
        return self._core.sessions.get(session) if session else ("", "")

    def params_for(self, engine: Engine) -> bytes | None:
        """Return what a prefill leg to this engine carries of the handle, whose hold it may read from then on."""
        source, core = self.offer.source, self._core
        if not self.live or source is None:
            return None
        if not core.fleet.pairs.usable(engine.key, source.engine):
            self.withdraw(Rejection.BROKEN_PAIR)
            return None
        if self._subject.guarded:
            # Between two legs the hold may have been replaced and released: what its blocks hold then is not known.
            if not core.ledger.start_pull(source):
                self.withdraw(Rejection.EXPIRED)
                return None
            self._pulling, self._told = source, source.deadline
        elif core.clock() >= source.usable_until():  # it waited its turn for too long
            self.withdraw(Rejection.EXPIRED)
            return None
        self._reader = engine
        core.fleet.pairs.try_again(engine.key, source.engine)
        return self.offer.params

    def withdraw(self, reason: Rejection, *, cut_off: bool = False) -> None:
        """Offer it no more in this turn; a stock engine's, which left the ledger when it was offered, is released."""
        self.give_up(cut_off=cut_off)
        self.live = False
        self.offer.params, self.offer.reason = None, reason
        self.outcome = outcome_of(self.offer, None, offered=False)

    def give_up(self, *, cut_off: bool = False) -> None:
        """See that a stock engine's handle leaves no hold behind once it was given away for nothing.

        `cut_off`: the leg that carried it was, so that its engine may still read for a moment.
        """
        source, core = self.offer.source, self._core
        if not self.live or source is None or self._subject.guarded:
            return
        if cut_off and self._reader is not None:
            _release_once_heard(core, source, self._reader)
        else:
            core.keeper.release_spent(source)

    def done_again(self, failed: str) -> None:
        """Say that both legs are done again after the decode engine `failed`; what it held is not asked of it now."""
        if self.holder == failed and self._subject.guarded:
            self.withdraw(Rejection.ENGINE_GONE)
        self.spent()

    def spent(self) -> None:
        """Say that the handle has been read, and that the turn is done again: a stock engine's was for one read."""
        if self.live and not self._subject.guarded:
            self.live = False
            self.offer.params, self.offer.reason = None, Rejection.USED
            self.outcome = outcome_of(self.offer, None, offered=False)

    def pull_ended(self, *, surely: bool) -> None:
        """Say that the prefill leg reads no more.

        Where it was cut off, its engine may not have noticed: it, or the holder, may stand still. It uses nothing that
        came after the deadline it was told, so the hold is kept until then, however long that is, and not released.
        """
        entry, self._pulling = self._pulling, None
        if entry is None:
            return

        def end() -> None:
            self._core.ledger.end_pull(entry)
            self._core.keeper.flush()

        if surely:
            end()
        else:
            rest = self._told - self._core.clock()
            self._core.later(max(self._core.settings.pull_grace_seconds, rest), end)

    def answered(self, engine: Engine, answer: PrefillAnswer) -> set[str]:
        """Take what a prefill engine says that it made of the handle; return the keys of engines better avoided now."""
        self.outcome = outcome_of(self.offer, answer, offered=self.live)
        source, fleet = self.offer.source, self._core.fleet
        if not self.live or source is None:
            return set()
        avoid = set()
        if self.outcome.reason == _PULL_FAILED:
            fleet.transfer_failed(engine.key, source.engine, Way.PULL)
            avoid.add(source.engine)  # it may be the pair's fault, or that engine may be dying
        elif self.outcome.pulled:
            fleet.transfer_worked(engine.key, source.engine, Way.PULL)
        if self.offer.depth >= source.depth and self.outcome.reason != _PULL_FAILED:
            self._core.ledger.saved(source, self.outcome.pulled)
        if self.outcome.reason in USELESS_HANDLE or self._has_nothing(source):
            self._core.ledger.retire(source, Fate.USELESS)
            self._core.keeper.flush()
        return avoid

    def _has_nothing(self, source: Entry) -> bool:
        """Tell whether not even a prompt that is the same by its content was proved: no later one will be either."""
        same = self.offer.depth >= source.depth and source.handle.tokens >= 2 * SHORT_STEP
        alike = self._subject.history is not None and self._subject.history.shape == source.shape
        return self.outcome.reason == _DIVERGED and not self.outcome.proved and same and alike

    def failed(self, result: Answer | Failure, *, elsewhere: bool) -> None:
        """Take the failure of a prefill leg, which may be the handle's fault: then the next leg goes without it.

        A guarded engine that died or could not be reached says nothing of the handle: another, if there is one
        (`elsewhere`), may pull by it.
        """
        innocent = result in (Failure.LOST, Failure.UNREACHABLE, Failure.BROKEN)
        if self.live and not (self._subject.guarded and innocent and elsewhere):
            seen = isinstance(result, Failure) and result is not Failure.UNREACHABLE
            self.withdraw(Rejection.PREFILL_FAILED, cut_off=seen)


def _release_once_heard(core: Core, source: Entry, reader: Engine) -> None:
    """Release a stock engine's hold once its reader has shown, after its leg was cut off, that it does not stand still.

    A stock engine uses whatever it reads, however late. One that is never heard of again leaves the hold to its ttl.
    """
    cut_off_at, grace = core.clock(), core.settings.pull_grace_seconds

    def look() -> None:
        if reader.heard_at > cut_off_at:
            core.keeper.release_spent(source)
        elif core.clock() < source.deadline:
            core.later(grace, look)

    core.later(grace, look)
