"""The fleet as this router sees it: the last good document, the engines there now, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from duplex_connector.contract import Role

from .document import FleetDocument, Revision
from .engines import Endpoint, Engine, Membership, members_of

AFFINITY_SLACK_TOKENS = 2048
"""How many more waiting prompt tokens than the least loaded engine a conversation's last prefill engine may have."""

AFFINITY_SLACK_LEGS = 8
"""How many more legs than the least loaded engine a conversation's last decode engine may have."""


@dataclass(slots=True)
class _Share:
    """How far a revision is behind its weight (smooth weighted round-robin)."""

    credit: float = 0.0


class Fleet:
    """Holds the document and the engines; picks revisions and engines. `on_gone` hears of engines that are no more."""

    def __init__(self, clock: Callable[[], float], on_gone: Callable[[str], None]) -> None:
        self._clock = clock
        self._on_gone = on_gone
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
            engine.host, engine.port = endpoint.host, endpoint.port
            engine.ready, engine.serving = endpoint.ready, endpoint.serving
            engine.draining = endpoint.pod in draining or endpoint.key in draining
            found[endpoint.key] = engine
        gone = self.engines.keys() - found.keys()
        self.engines = found
        for key in gone:
            self._on_gone(key)

    def members(self, revision: str, role: Role) -> list[Engine]:
        """Return a revision's engines of one role."""
        return [engine for engine in self.engines.values() if engine.revision == revision and engine.role is role]

    def ready(self, revision: str, role: Role) -> list[Engine]:
        """Return those that take new legs now."""
        return [engine for engine in self.members(revision, role) if engine.takes_legs()]

    def complete(self, revision: str) -> bool:
        """Tell whether a revision has a ready engine of each role: only then it takes new conversations."""
        return bool(self.ready(revision, Role.PREFILL)) and bool(self.ready(revision, Role.DECODE))

    def pick_revision(self, preferred: str = "") -> str | None:
        """Pick where a turn runs: its conversation's revision while that is complete, else one by weight."""
        if self.document is None:
            return None
        if preferred and self.complete(preferred):
            return preferred
        able = [revision for revision in self.document.revisions if self.complete(revision.name)]
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

    def _able(self, revision: str, role: Role, avoid: Collection[str]) -> list[Engine]:
        """Return ready engines; those that failed this turn or rest after failures only where there are no others."""
        now = self._clock()
        ready = self.ready(revision, role)
        rested = [engine for engine in ready if engine.key not in avoid and now >= engine.resting_until]
        return rested or [engine for engine in ready if engine.key not in avoid] or ready

    def pick_prefill(self, revision: str, last: str = "", avoid: Collection[str] = ()) -> Engine | None:
        """Pick the engine with the fewest prompt tokens waiting, or the conversation's last one if not far from it."""
        able = self._able(revision, Role.PREFILL, avoid)
        if not able:
            return None
        least = min(able, key=lambda engine: (engine.waiting_tokens, engine.legs))
        for engine in able:
            if engine.key == last and engine.waiting_tokens <= least.waiting_tokens + AFFINITY_SLACK_TOKENS:
                return engine
        return least

    def pick_decode(self, revision: str, last: str = "", avoid: Collection[str] = ()) -> Engine | None:
        """Pick the engine with the fewest legs, or the conversation's last one if it is not far from that."""
        able = self._able(revision, Role.DECODE, avoid)
        if not able:
            return None
        least = min(able, key=lambda engine: engine.legs)
        for engine in able:
            if engine.key == last and engine.legs <= least.legs + AFFINITY_SLACK_LEGS:
                return engine
        return least


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
    )
