"""The ledger: which handles there are, which of them a request shares most history with, and when each must go.

A hold is the KV that a decode engine keeps for a handle. The router is the only part that knows which conversations
live, so every hold has an owner here until it is released, lapses, or its engine is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from duplex_connector.contract import HANDLE_EXPIRY_MARGIN_SECONDS
from duplex_router.wire.params import Handle

from .history import History

EXPIRY_MARGIN_SECONDS = HANDLE_EXPIRY_MARGIN_SECONDS + 1.0
"""The reader's own margin, and a second for what lies between this clock and its read."""

MAX_CANDIDATES = 8
"""How many handles that share the same history are looked at before a shallower match is tried."""


@dataclass(slots=True, eq=False)
class Entry:
    """One handle and what is known of its hold.

    `engine`: key of the decode engine that holds, `prefill` of the one that handed it the prompt. `deadline`: when the
    hold lapses, on this router's clock; `margin`: how long before that no pull may start.
    `tokens_known`: (marks, tokens) where the prompt's token count up to a mark was seen. `pulls`: prefill legs that
    may read the hold now; `turns`: turns under way that came from it. `retired`: replaced, released when no pull runs.
    """

    handle: Handle
    engine: str
    revision: str
    tenant: bytes
    marks: list[bytes]
    whole: bytes
    length: int
    reply: bytes
    created: float
    deadline: float
    tokens_known: tuple[tuple[int, int], ...] = ()
    margin: float = EXPIRY_MARGIN_SECONDS
    prefill: str = ""
    pulls: int = 0
    turns: int = 0
    retired: bool = False

    def usable_until(self) -> float:
        """Return the last moment at which a pull may be asked for."""
        return self.deadline - self.margin


@dataclass(slots=True)
class Match:
    """The handle that shares most history with a request: its first `depth` marks. `reason`: why there is none."""

    entry: Entry | None = None
    depth: int = 0
    reason: str = ""


Usable = Callable[[Entry], str]
"""Says why an entry must not be offered now; empty where it may."""


class Ledger:
    """All entries of one router, by content, by engine, and by age. Every operation is O(marks) at most."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_mark: dict[bytes, dict[Entry, None]] = {}
        self._by_engine: dict[str, dict[Entry, None]] = {}
        self._held: Counter[str] = Counter()
        self._boots: dict[str, str] = {}
        self._to_release: list[Entry] = []
        self.tokens = 0

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._by_engine.values())

    def __iter__(self) -> Iterator[Entry]:
        for entries in self._by_engine.values():
            yield from entries

    def held_tokens(self, engine: str) -> int:
        """Return how many tokens an engine holds for entries of this ledger."""
        return self._held[engine]

    def add(self, entry: Entry) -> None:
        """Take a new handle, which replaces one of the same history and reply.

        A boot other than its engine's last one drops all that the old boot held.
        """
        if self._boots.get(entry.engine, entry.handle.boot) != entry.handle.boot:
            self.forget_engine(entry.engine)
        self._boots[entry.engine] = entry.handle.boot
        self._retire_equals(entry)
        self._by_engine.setdefault(entry.engine, {})[entry] = None
        self.tokens += entry.handle.tokens
        self._held[entry.engine] += entry.handle.tokens
        for mark in entry.marks:
            self._by_mark.setdefault(mark, {})[entry] = None

    def _retire_equals(self, entry: Entry) -> None:
        """Retire older entries that hold the very same: one of them is as good as all."""
        same = self._by_mark.get(entry.marks[-1], {}) if entry.marks else {}
        older = [each for _, each in zip(range(MAX_CANDIDATES), reversed(same), strict=False)]
        for each in older:
            if (each.whole, each.reply, each.tenant) == (entry.whole, entry.reply, entry.tenant):
                self.retire(each)

    def match(self, history: History, tenant: bytes, usable: Usable) -> Match:
        """Find the deepest usable match, of equals the one whose reply follows, of those the newest."""
        now = self._clock()
        reason = ""
        for depth in range(len(history.marks), 0, -1):
            found = self._by_mark.get(history.marks[depth - 1])
            if not found:
                continue
            best: Entry | None = None
            for _, entry in zip(range(MAX_CANDIDATES), reversed(found), strict=False):
                why = self._why_not(entry, tenant, now) or usable(entry)
                if why:
                    reason = reason or why
                elif history.replied_with(entry.length, entry.reply):
                    best = entry
                    break
                else:
                    best = best or entry
            if best is not None:
                return Match(best, depth)
        return Match(reason=reason)

    @staticmethod
    def _why_not(entry: Entry, tenant: bytes, now: float) -> str:
        if entry.tenant != tenant:  # the seed of the marks has the tenant too: this does not rest on digests alone
            return "tenant"
        return "expired" if now >= entry.usable_until() else ""

    def shared(self, history: History, depth: int) -> bool:
        """Tell whether more than one entry has the first `depth` marks of this history."""
        return len(self._by_mark.get(history.marks[depth - 1], ())) > 1

    def take(self, entry: Entry) -> None:
        """Remove an entry whose handle is about to be used up or whose hold is gone: nothing is released."""
        entries = self._by_engine.get(entry.engine, {})
        if entry not in entries:
            return
        del entries[entry]
        self._held[entry.engine] -= entry.handle.tokens
        if not entries:
            del self._by_engine[entry.engine]
            del self._held[entry.engine]
        self.tokens -= entry.handle.tokens
        self._unindex(entry)

    def _unindex(self, entry: Entry) -> None:
        for mark in entry.marks:
            found = self._by_mark.get(mark)
            if found is not None:
                found.pop(entry, None)
                if not found:
                    del self._by_mark[mark]

    def retire(self, entry: Entry) -> None:
        """Say that an entry is of no more use: it is not offered again, and released once no pull of it runs."""
        if entry.retired:
            return
        entry.retired = True
        self._unindex(entry)
        self._release_if_free(entry)

    def start_pull(self, entry: Entry) -> bool:
        """Say that a prefill leg may read the hold from now on; false where the hold is no longer there to read."""
        held = entry in self._by_engine.get(entry.engine, {}) and self._clock() < entry.usable_until()
        entry.pulls += held
        return held

    def end_pull(self, entry: Entry) -> None:
        """Say that this prefill leg reads no more."""
        entry.pulls -= 1
        if entry.retired:
            self._release_if_free(entry)

    def _release_if_free(self, entry: Entry) -> None:
        if entry.pulls == 0 and entry in self._by_engine.get(entry.engine, {}):
            self.take(entry)
            self._to_release.append(entry)

    def due_releases(self) -> list[Entry]:
        """Return, once, the entries whose holds are to be released."""
        due, self._to_release = self._to_release, []
        return due

    def forget_engine(self, engine: str) -> int:
        """Drop all entries of an engine that is gone or has started anew; return how many."""
        entries = list(self._by_engine.get(engine, ()))
        for entry in entries:
            self.take(entry)
        self._boots.pop(engine, None)
        return len(entries)

    def engines(self) -> list[str]:
        """Return the engines that hold anything."""
        return list(self._by_engine)

    def drop_lapsed(self) -> int:
        """Drop entries whose holds have lapsed on their engines; return how many."""
        now = self._clock()
        lapsed = [entry for entry in self if entry.deadline <= now and entry.pulls == 0]
        for entry in lapsed:
            self.take(entry)
        return len(lapsed)

    def keep_within(self, engine: str, tokens: int) -> int:
        """Retire an engine's oldest entries, those of turns under way excepted, until it holds at most `tokens`."""
        retired = 0
        excess = self.held_tokens(engine) - tokens
        for entry in list(self._by_engine.get(engine, ())):
            if excess <= 0:
                break
            if entry.turns == 0 and not entry.retired:
                self.retire(entry)
                excess -= entry.handle.tokens
                retired += 1
        return retired

    def retire_all(self) -> None:
        """Retire every entry: the router ends."""
        for entry in list(self):
            self.retire(entry)


@dataclass(slots=True)
class Boundary:
    """How many tokens of a former prompt are surely those of a request, for engines that prove nothing."""

    tokens: int = 0
    reason: str = ""


def unproved_tokens(ledger: Ledger, match: Match, history: History) -> Boundary:
    """Return how far a stock engine's handle may be trusted: to a prompt's end, never into a reply.

    Only where the match goes deeper than any history that two live entries share, since the handle is used up.
    """
    entry = match.entry
    if entry is None:
        return Boundary(reason=match.reason)
    exact = history.tokens_at(match.depth)
    known = [(depth, tokens) for depth, tokens in entry.tokens_known if depth <= match.depth]
    if exact is not None:
        known.append((match.depth, exact))
    if not known:
        return Boundary(reason="unproved")
    depth, tokens = max(known)
    if ledger.shared(history, depth):
        return Boundary(reason="shared-history")
    return Boundary(tokens=tokens)
