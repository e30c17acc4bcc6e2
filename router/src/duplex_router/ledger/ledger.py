"""The ledger: which handles there are, which of them a request shares most history with, and when each must go.

A hold is the KV that a decode engine keeps for a handle. The router is the only part that knows which conversations
live, so every hold has an owner here until it is released, lapses, or its engine is gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from duplex_connector.contract import HANDLE_EXPIRY_MARGIN_SECONDS
from duplex_router.wire.params import Handle

from .budget import EngineHolds
from .fates import TENANT, Fate, Fates
from .history import History
from .marks import Marks
from .returns import Kind, Returns
from .timetable import Timetable

EXPIRY_MARGIN_SECONDS: Final = HANDLE_EXPIRY_MARGIN_SECONDS + 1.0
"""The reader's own margin, and a second for what lies between this clock and its read."""

MAX_CANDIDATES: Final = 8
"""How many handles that share the same history are looked at before a shallower match is tried."""


HORIZON_SECONDS: Final = 240.0
"""How far ahead a hold's worth looks: what is over the budget now makes room for what comes in the next minutes."""

WORTH_SAMPLE: Final = 64
"""Of how many holds about the worth of all that an engine holds is told: a look must not hold turns up."""


class Entry:
    """One handle and what is known of its hold.

    `engine`: key of the decode engine that holds, `prefill` of the one that handed it the prompt. `marks`: of the
    prompt and the reply after it; the first `depth` are the prompt's, which `whole` and `length` name too. `shape`: see
    `History`. `deadline`: when the hold lapses, on this router's clock; `margin`: how long before that no pull may
    start. `tokens_known`: (marks, tokens) where the prompt's token count up to a mark was seen. `pulls`: prefill legs
    that may read the hold now; `turns`: turns under way that came from it. `retired`: released when no pull runs.
    `kind`: of the turn that it comes from; `saves`: the part of its tokens that a turn is thought to pull; `used`: when
    a turn last came from it, or it was made.
    `published`: other routers may have found it in a shared ledger.
    """

    __slots__ = (
        "created", "deadline", "depth", "engine", "handle", "kind", "length", "margin", "marks", "prefill",
        "published", "pulls", "retired", "revision", "saves", "shape", "tenant", "tokens_known", "turns", "used",
        "whole",
    )  # fmt: skip

    def __init__(
        self,
        *,
        handle: Handle,
        engine: str,
        revision: str,
        tenant: bytes,
        marks: list[bytes],
        depth: int,
        whole: bytes,
        length: int,
        created: float,
        deadline: float,
        shape: bytes = b"",
        tokens_known: tuple[tuple[int, int], ...] = (),
        margin: float = EXPIRY_MARGIN_SECONDS,
        prefill: str = "",
        kind: Kind = Kind.FIRST,
        saves: float = 1.0,
    ) -> None:
        self.handle = handle
        self.engine = engine
        self.revision = revision
        self.tenant = tenant
        self.marks = marks
        self.depth = depth
        self.whole = whole
        self.length = length
        self.created = created
        self.deadline = deadline
        self.shape = shape
        self.tokens_known = tokens_known
        self.margin = margin
        self.prefill = prefill
        self.kind = kind
        self.saves = saves
        self.used = created
        self.pulls = 0
        self.turns = 0
        self.retired = False
        self.published = False

    def usable_until(self) -> float:
        """Return the last moment at which a pull may be asked for."""
        return self.deadline - self.margin


class Match:
    """The handle that shares most history with a request: its first `depth` marks. `reason`: why there is none."""

    __slots__ = ("depth", "entry", "reason")

    def __init__(self, entry: Entry | None = None, depth: int = 0, reason: str = "") -> None:
        self.entry = entry
        self.depth = depth
        self.reason = reason


Usable = Callable[[Entry], str]
"""Says why an entry must not be offered now; empty where it may."""


class Ledger:
    """All entries of one router, by content, by engine, and by age. Every operation is O(marks) at most."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_tenant: dict[bytes, Marks[Entry]] = {}
        self._by_engine: dict[str, EngineHolds[Entry]] = {}
        self._boots: dict[str, str] = {}
        self._to_release: list[Entry] = []
        self._fates = Fates()
        self.returns = Returns()
        self._borrowed: set[Entry] = set()
        self._to_give_back: list[Entry] = []
        self.looks: Timetable[Entry] = Timetable(clock)
        """When each entry's lease has to be looked at: first after half of it, and soon after a turn came from it."""
        self._used: list[Entry] = []
        """Those that turns came from since the last look."""
        self.tokens = 0
        self.shared_until = math.inf
        """Until when this router surely owns what it has published; later on others may have released it."""

    def __len__(self) -> int:
        return sum(len(holds) for holds in self._by_engine.values())

    def __contains__(self, entry: Entry) -> bool:
        return self._holds(entry)

    def __iter__(self) -> Iterator[Entry]:
        for holds in self._by_engine.values():
            yield from holds

    def held_tokens(self, engine: str) -> int:
        """Return how many tokens an engine holds for entries of this ledger."""
        holds = self._by_engine.get(engine)
        return holds.tokens if holds is not None else 0

    def live_tokens(self, engine: str) -> int:
        """Return the tokens that an engine holds, each counted by how likely it is to be pulled again: by a sample."""
        holds = list(self._by_engine.get(engine, ()))
        sample = holds[:: len(holds) // WORTH_SAMPLE + 1]
        worth = sum(self._worth(entry)[0] * entry.handle.tokens for entry in sample)
        return round(worth * len(holds) / len(sample)) if sample else 0

    def held_conversations(self, engine: str) -> int:
        """Return how many entries of this ledger an engine holds."""
        return len(self._by_engine.get(engine, ()))

    def add(self, entry: Entry) -> None:
        """Take a new handle, which replaces one of the same history and reply.

        A boot other than its engine's last one drops all that the old boot held.
        """
        if self._boots.get(entry.engine, entry.handle.boot) != entry.handle.boot:
            self.forget_engine(entry.engine, Fate.BOOT)
        self._boots[entry.engine] = entry.handle.boot
        self._retire_equals(entry)
        self._index(entry)
        self._hold(entry)

    def _hold(self, entry: Entry) -> None:
        holds = self._by_engine.get(entry.engine)
        if holds is None:
            holds = self._by_engine[entry.engine] = EngineHolds(self._worth)
        holds.add(entry, entry.tenant, entry.handle.tokens)
        self.looks.put(entry, (self._clock() + entry.deadline) / 2)
        self.tokens += entry.handle.tokens
        self._note(entry, Fate.HELD)

    def replace(self, former: Entry, entry: Entry) -> None:
        """Take a new handle of a history that goes on from a former entry's prompt: that one is retired for it."""
        index, same = self._by_tenant.get(former.tenant), _same_marks(former, entry)
        alike = former.tenant == entry.tenant and self.same_boot(entry)
        if index is None or former.retired or not same or not alike:
            self.retire(former, Fate.REPLACED)  # first, so that few marks are shared
            self.add(entry)
            return
        self._boots[entry.engine] = entry.handle.boot
        self._retire_equals(entry, but=former)
        former.retired = True
        index.replace(former, former.marks, entry, entry.marks, same)
        self._hold(entry)
        self._release_if_free(former)

    def _retire_equals(self, entry: Entry, but: Entry | None = None) -> None:
        """Retire older entries that hold the very same: one of them is as good as all."""
        index = self._by_tenant.get(entry.tenant)
        if index is None or not entry.marks:
            return
        for each in index.newest(entry.marks[-1], MAX_CANDIDATES):
            if each is but or len(each.marks) != len(entry.marks):
                continue
            if each.whole == entry.whole and each.shape == entry.shape:
                self.retire(each, Fate.REPLACED)

    def _note(self, entry: Entry, fate: Fate) -> None:
        if fate is not Fate.REPLACED:  # what replaced it has a fate of its own
            self._fates.note(entry.marks[entry.depth - 1], entry.tenant, fate)

    def match(self, history: History, tenant: bytes, usable: Usable) -> Match:
        """Find the deepest usable match, of equals one of the same shape, of those the newest."""
        now = self._clock()
        index, marks = self._by_tenant.get(tenant), history.marks
        if index is None:
            return Match(reason=self._fates.why(marks, tenant))
        deepest = index.known(marks)
        reason, seen = "", 0
        for depth in range(deepest, 0, -1):
            count = index.count(marks[depth - 1])
            if count == seen:
                continue  # the same entries as one mark deeper
            seen = count
            best: Entry | None = None
            for entry in index.newest(marks[depth - 1], MAX_CANDIDATES):
                why = self._why_not(entry, tenant, now) or usable(entry)
                if why:
                    reason = reason or why
                elif entry.shape == history.shape:
                    best = entry
                    break
                else:
                    best = best or entry
            if best is not None:
                return Match(best, depth)
        return Match(reason=reason or self._fates.why(marks, tenant))

    def _why_not(self, entry: Entry, tenant: bytes, now: float) -> str:
        if entry.tenant != tenant:  # each tenant has an index of its own: this does not rest on that alone
            return TENANT
        return "" if self._may_be_read(entry, now) else Fate.EXPIRED

    def _may_be_read(self, entry: Entry, now: float) -> bool:
        owned = not entry.published or entry in self._borrowed or now < self.shared_until
        return owned and now < entry.usable_until()

    def shared(self, history: History, depth: int, tenant: bytes) -> bool:
        """Tell whether more than one of a tenant's entries has the first `depth` marks of this history."""
        index = self._by_tenant.get(tenant)
        return index is not None and index.count(history.marks[depth - 1]) > 1

    def take(self, entry: Entry, fate: Fate) -> None:
        """Remove an entry whose handle is about to be used up or whose hold is gone: nothing is released."""
        holds = self._by_engine.get(entry.engine)
        if holds is None or entry not in holds:
            return
        holds.remove(entry)
        self.looks.drop(entry)
        if not holds:
            del self._by_engine[entry.engine]
        self.tokens -= entry.handle.tokens
        now = self._clock()
        if fate is not Fate.USED:
            self.returns.learn(entry.tenant, entry.kind, now - entry.used, now, returned=False)
        if not entry.retired:
            self._unindex(entry)
            self._note(entry, fate)

    def _index(self, entry: Entry) -> None:
        index = self._by_tenant.get(entry.tenant)
        if index is None:
            index = self._by_tenant[entry.tenant] = Marks()
        index.add(entry.marks, entry)

    def _unindex(self, entry: Entry) -> None:
        index = self._by_tenant.get(entry.tenant)
        if index is None:
            return
        index.remove(entry.marks, entry)
        if not len(index):
            del self._by_tenant[entry.tenant]

    def retire(self, entry: Entry, fate: Fate) -> None:
        """Say that an entry is of no more use: it is not offered again, and released once no pull of it runs."""
        if entry.retired:
            return
        self._unindex(entry)
        self._note(entry, fate)
        entry.retired = True
        self._release_if_free(entry)

    def _holds(self, entry: Entry) -> bool:
        holds = self._by_engine.get(entry.engine)
        return holds is not None and entry in holds

    def use(self, entry: Entry) -> None:
        """Say that a turn comes from an entry: its conversation has returned; `settle` follows when it is over."""
        now = self._clock()
        self.returns.learn(entry.tenant, entry.kind, now - entry.used, now, returned=True)
        entry.used = now
        self._used.append(entry)

    def saved(self, entry: Entry, tokens: int) -> None:
        """Say how many tokens a turn that shares all of an entry's prompt pulled: what the next one may pull."""
        entry.saves = (entry.saves + min(tokens / max(entry.handle.tokens, 1), 1.0)) / 2

    def likely(self, entry: Entry, seconds: float) -> float:
        """Return the chance that an entry's conversation returns within so many seconds from now."""
        return self.returns.chance(entry.tenant, entry.kind, self._clock() - entry.used, seconds)

    def _worth(self, entry: Entry) -> tuple[float, float]:
        age = self._clock() - entry.used
        return self.likely(entry, HORIZON_SECONDS) * entry.saves, max(age / 4, 1.0)

    def start_pull(self, entry: Entry) -> bool:
        """Say that a prefill leg may read the hold from now on; false where the hold is no longer there to read."""
        held = (self._holds(entry) or entry in self._borrowed) and self._may_be_read(entry, self._clock())
        entry.pulls += held
        return held

    def end_pull(self, entry: Entry) -> None:
        """Say that this prefill leg reads no more."""
        entry.pulls -= 1
        if entry.retired:
            self._release_if_free(entry)
        self.settle(entry)

    def _release_if_free(self, entry: Entry) -> None:
        if entry.pulls == 0 and self._holds(entry):
            self.take(entry, Fate.REPLACED)
            self._to_release.append(entry)

    def same_boot(self, entry: Entry) -> bool:
        """Tell whether an entry from elsewhere is of the boot that this router knows its engine by, if by any."""
        return self._boots.get(entry.engine, entry.handle.boot) == entry.handle.boot

    def borrow(self, entry: Entry) -> None:
        """Let matches find another router's entry, until `stop_lending`; its hold is neither counted nor released here.

        It is given back once no turn came from it and no pull of it runs.
        """
        self._borrowed.add(entry)
        self._index(entry)

    def stop_lending(self, entry: Entry) -> None:
        """Let no further match find a borrowed entry: its owner may end it once the present turn has read it."""
        self._unindex(entry)
        self.settle(entry)

    def settle(self, entry: Entry) -> None:
        """See to an entry of which a turn or a pull has ended: what it is worth now, where turns have spared it so far.

        A borrowed one is given back where nothing here needs it any more.
        """
        if entry.turns:
            return
        if entry in self._borrowed:
            if entry.pulls == 0:
                self._borrowed.remove(entry)
                self._to_give_back.append(entry)
        elif self._holds(entry):
            self._by_engine[entry.engine].changed(entry)

    def due_returns(self) -> list[Entry]:
        """Return, once, the borrowed entries to be given back; the retired ones have something newer in their place."""
        due, self._to_give_back = self._to_give_back, []
        return due

    def due_releases(self) -> list[Entry]:
        """Return, once, the entries whose holds are to be released."""
        due, self._to_release = self._to_release, []
        return due

    def forget_engine(self, engine: str, fate: Fate) -> int:
        """Drop all entries of an engine that is gone or has started anew; return how many."""
        entries = list(self._by_engine.get(engine, ()))
        for entry in entries:
            self.take(entry, fate)
        self._boots.pop(engine, None)
        return len(entries)

    def engines(self) -> list[str]:
        """Return the engines that hold anything."""
        return list(self._by_engine)

    def due(self) -> tuple[list[Entry], int]:
        """Return the entries to be looked at now, without those that have lapsed, which are dropped; how many were."""
        now = self._clock()
        used, self._used = self._used, []
        for entry in used:
            if self._holds(entry):
                self.looks.put(entry, now)
        self.returns.fold()
        for holds in self._by_engine.values():
            holds.prepare(now)
        living: list[Entry] = []
        lapsed = 0
        for entry in self.looks.due(now):
            if entry.deadline <= now and entry.pulls == 0:
                self.take(entry, Fate.EXPIRED)
                lapsed += 1
            else:
                living.append(entry)
        return living, lapsed

    def keep_within(self, engine: str, tokens: int) -> int:
        """Retire an engine's least valuable entries until it holds at most `tokens`; return how many.

        An entry's worth is its chance of return within the next minutes, times the tokens that it would save, for each
        token that it takes. Entries of turns under way stay, and so do those of tenants within their share.
        """
        retired, leaving = 0, 0
        holds = self._by_engine.get(engine)
        if holds is None:
            return 0
        holds.near = tokens / 2
        while holds.tokens - leaving > tokens:
            entry = holds.first_to_go(tokens, self._clock(), spared=_is_spared)
            if entry is None:
                break
            self.retire(entry, Fate.OVER_BUDGET)
            leaving += entry.handle.tokens if entry in holds else 0
            retired += 1
        return retired

    def retire_all(self) -> None:
        """Retire every entry: the router ends, or nothing shall be held any more."""
        for entry in list(self):
            self.retire(entry, Fate.DISABLED)


def _same_marks(former: Entry, entry: Entry) -> int:
    """Return how many marks an entry has in common with a former one, whose prompt it begins with; 0: not all of it."""
    same = former.depth
    most = min(len(former.marks), len(entry.marks))
    if not 0 < same <= most or former.marks[same - 1] != entry.marks[same - 1]:
        return 0
    while same < most and former.marks[same] == entry.marks[same]:
        same += 1
    return same


def _is_spared(entry: Entry) -> bool:
    return entry.turns > 0 or entry.retired
