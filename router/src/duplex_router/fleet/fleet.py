"""The fleet as this router sees it: the last good document, the engines there now, and the choice among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from duplex_connector.contract import Role

from .choice import choose, decode_load
from .document import FleetDocument, Revision
from .engines import Endpoint, Engine, Membership, authority, members_of
from .pairs import Pairs, Way

_DECODE: Final = Role.DECODE


@dataclass(slots=True)
class _Share:
    """How far a revision is behind its weight (smooth weighted round-robin)."""

    credit: float = 0.0


class Fleet:
    """Holds the document and the engines; picks revisions and engines.

    `on_gone` hears of engines that are no more; `held_tokens` says how many tokens a decode engine holds.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_gone: Callable[[Engine], None],
        held_tokens: Callable[[str], int] = lambda _: 0,
    ) -> None:
        self._clock = clock
        self._on_gone = on_gone
        self._held_tokens = held_tokens
        self._prefills: dict[str, list[Engine]] = {}
        self._decodes: dict[str, list[Engine]] = {}
        """By revision, those that take new legs."""
        self.pairs = Pairs(clock)
        self._services: Membership = {}
        self._shares: dict[str, _Share] = {}
        self.document: FleetDocument | None = None
        self.engines: dict[str, Engine] = {}
        self.broken = ""
        """Why the newest document was refused; empty where it was taken."""

    def take_document(self, document: FleetDocument) -> bool:
        """Apply a document unless it is older than the present one. Raises FleetError; the old one stays then."""
        present = self.document
        if present is not None and document.version < present.version:
            self.broken = f"version {list(document.version)} is older than {list(present.version)}: ignored"
            return False
        members = members_of(document, self._services)
        self.document = document
        self.broken = ""
        self._take_members(members)
        return True

    def refuse_document(self, why: str) -> None:
        """Say that the newest document is missing or broken: the last good one stays."""
        self.broken = why

    def take_service(self, name: str, endpoints: list[Endpoint]) -> None:
        """Take the endpoints of one Service; none: the Service has no more."""
        if endpoints:
            self._services[name] = endpoints
        else:
            self._services.pop(name, None)
        if self.document is not None:
            self._take_members(members_of(self.document, self._services))

    def _take_members(self, members: Iterable[tuple[str, Role, Endpoint]]) -> None:
        draining = set(self.document.draining) if self.document else set()
        found: dict[str, Engine] = {}
        for revision, role, endpoint in members:
            engine = self.engines.get(endpoint.key)
            if engine is None or (engine.role, engine.revision) != (role, revision):
                engine = _engine(revision, role, endpoint)
            engine.host, engine.port, engine.tls = endpoint.host, endpoint.port, endpoint.tls
            engine.address = authority(endpoint.host, endpoint.port)
            was_ready, engine.ready, engine.serving = engine.ready, endpoint.ready, endpoint.serving
            engine.draining = endpoint.pod in draining or endpoint.key in draining
            if endpoint.ready and not (was_ready and endpoint.key in self.engines):
                self._joins(engine)
            found[endpoint.key] = engine
        gone = [engine for key, engine in self.engines.items() if key not in found]
        self.engines = found
        self._prefills, self._decodes = {}, {}
        for engine in found.values():
            if engine.takes_legs():
                ready = self._decodes if engine.role is _DECODE else self._prefills
                ready.setdefault(engine.revision, []).append(engine)
        for engine in gone:
            self.pairs.forget(engine.key)
            self._on_gone(engine)

    def _joins(self, engine: Engine) -> None:
        """Start an engine slowly where others are ready already, and without what its former life did."""
        others = self.ready(engine.revision, engine.role)
        engine.ready_since = self._clock() if any(other is not engine for other in others) else -math.inf
        self.pairs.forget(engine.key)

    def booted(self, engine: Engine, boot: str) -> None:
        """Take the boot that an engine's handle names: a new one owes nothing to the transfers of the old."""
        if engine.boot != boot:
            if engine.boot:
                self.pairs.forget(engine.key)
            engine.boot = boot

    def process_began(self, engine: Engine, when: float | None) -> bool:
        """Take when an engine's process began; true: it has started anew, and nobody had noticed."""
        anew = engine.restarted(when)
        if anew:
            self.pairs.forget(engine.key)
        return anew

    def transfer_failed(self, prefill: str, decode: str, way: Way) -> None:
        """Count a failed transfer of a pair, and of its engines where they fail with others too."""
        self.pairs.failed(prefill, decode, way)
        now = self._clock()
        for key, partner in ((prefill, decode), (decode, prefill)):
            engine = self.engines.get(key)
            if engine is not None:
                engine.failed_a_transfer(partner, now)

    def transfer_worked(self, prefill: str, decode: str, way: Way) -> None:
        """Count a transfer that went well."""
        if self.pairs:
            self.pairs.worked(prefill, decode, way)
        self._forgive(prefill)
        self._forgive(decode)

    def _forgive(self, key: str) -> None:
        engine = self.engines.get(key)
        if engine is not None and engine.failed_with:
            engine.failed_with.clear()

    def members(self, revision: str, role: Role) -> list[Engine]:
        """Return a revision's engines of one role."""
        return [engine for engine in self.engines.values() if engine.revision == revision and engine.role is role]

    def ready(self, revision: str, role: Role) -> list[Engine]:
        """Return those that take new legs now."""
        return (self._decodes if role is _DECODE else self._prefills).get(revision, [])

    def complete(self, revision: str) -> bool:
        """Tell whether a revision has a ready engine of each role: only then it takes new conversations."""
        return revision in self._prefills and revision in self._decodes

    def _leaving(self, revision: str, role: Role) -> list[Engine]:
        """Return those that take no new turns but still answer: a turn that began before they were to go ends there."""
        found = [engine for engine in self.members(revision, role) if engine.serving]
        return [engine for engine in found if engine.ready] or found

    def pick_revision(self, preferred: str = "", *, but: str = "") -> str | None:
        """Pick where a turn runs: its conversation's revision while that is complete, else one by weight, not `but`."""
        if self.document is None:
            return None
        if preferred and self.complete(preferred):
            return preferred
        able = [
            revision for revision in self.document.revisions if self.complete(revision.name) and revision.name != but
        ]
        weighted = [revision for revision in able if revision.weight > 0] or able
        return self._next_by_weight(weighted) if weighted else None

    def _next_by_weight(self, able: list[Revision]) -> str:
        if len(able) == 1:
            return able[0].name
        shares = {revision.name: self._shares.setdefault(revision.name, _Share()) for revision in able}
        for revision in able:
            shares[revision.name].credit += max(revision.weight, 1)
        chosen = max(able, key=lambda revision: shares[revision.name].credit)
        shares[chosen.name].credit -= sum(max(revision.weight, 1) for revision in able)
        return chosen.name

    def _able(self, ready: list[Engine], avoid: Collection[str], now: float) -> list[Engine]:
        """Return the engines that are best to use of several ready ones.

        Left out, each as long as others remain: those that failed this turn, and those that rest after failures.
        """
        if avoid:
            ready = [engine for engine in ready if engine.key not in avoid] or ready
        return [engine for engine in ready if now >= engine.resting_until] or ready

    def pick_prefill(
        self, revision: str, last: str = "", avoid: Collection[str] = (), *, tokens: int = 1, holder: str = ""
    ) -> Engine | None:
        """Pick a prefill engine by the prompt tokens that wait there, `last` being the conversation's last one.

        `tokens`: about how many the prompt has. `holder`: the decode engine that it shall pull from; where pairs are
        broken, an engine is chosen that can, and that some decode engine can read from.
        """
        ready = self._prefills.get(revision) or self._leaving(revision, Role.PREFILL)
        if not ready:
            return None
        now = self._clock()
        if len(ready) == 1:
            chosen = ready[0]
        else:
            able = self._able(ready, avoid, now)
            if self.pairs:
                able = [engine for engine in able if self._paired(engine, holder)] or able
            chosen = choose(able, [engine.waiting_tokens for engine in able], last, tokens, now)
        chosen.try_again(now)
        return chosen

    def _paired(self, prefill: Engine, holder: str) -> bool:
        """Tell whether a prefill engine can pull from the holder, if there is one, and be read by a decode engine."""
        if holder and not self.pairs.usable(prefill.key, holder):
            return False
        return any(self.pairs.usable(prefill.key, each.key) for each in self.ready(prefill.revision, _DECODE))

    def pick_decode(
        self, revision: str, last: str = "", avoid: Collection[str] = (), *, prefill: str = ""
    ) -> Engine | None:
        """Pick a decode engine by its streams and the tokens it holds; one that can read from the engine `prefill`."""
        ready = self._decodes.get(revision) or self._leaving(revision, _DECODE)
        if not ready:
            return None
        now = self._clock()
        if len(ready) == 1:
            chosen = ready[0]
        else:
            able = self._able(ready, avoid, now)
            if prefill and self.pairs:
                able = [engine for engine in able if self.pairs.usable(prefill, engine.key)] or able
            loads = [decode_load(engine, self._held_tokens(engine.key)) for engine in able]
            chosen = choose(able, loads, last, 1, now)
        chosen.try_again(now)
        if prefill and self.pairs:
            self.pairs.try_again(prefill, chosen.key)
        return chosen


def _engine(revision: str, role: Role, endpoint: Endpoint) -> Engine:
    return Engine(
        key=endpoint.key,
        role=role,
        revision=revision,
        host=endpoint.host,
        port=endpoint.port,
        pod=endpoint.pod,
        ready=endpoint.ready,
        serving=endpoint.serving,
        tls=endpoint.tls,
    )
