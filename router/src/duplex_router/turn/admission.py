"""How many turns and prompt tokens a revision's engines are given at once, and who waits beyond that, in fair order.

Engines queue without bound, and what waits there holds memory and cannot be turned away any more. So a turn beyond the
bound waits here, where it costs nothing and leaves with its client; tenants take turns, so that one of them with many
requests does not make the others wait for all of these. Beyond a bound of its own the queue turns away.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Protocol

from duplex_connector.contract import Role
from duplex_router.fleet.fleet import Fleet

from .counters import Counters

LONGEST_RETRY_AFTER_SECONDS: Final = 30
_NEWEST_WAIT_WEIGHT: Final = 0.2
_PREFILL: Final = Role.PREFILL
_DECODE: Final = Role.DECODE


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Bounds of one revision; those of engines count for each ready one."""

    engine_turns: int = 2048
    """Turns under way, for each decode engine."""
    engine_prompt_tokens: int = 4 * 1024 * 1024
    """Prompt tokens given and not yet answered for, for each prefill engine: what it can do within a leg's deadline."""
    max_waiting: int = 1024
    """Turns that wait; beyond it 429."""
    wait_seconds: float = 30.0
    """How long one waits at most; then 503."""


class Waiting(Protocol):
    """Who asks for admission."""

    def admitted(self) -> None:
        """Start, after having waited."""
        ...

    def stranded(self) -> None:
        """Go elsewhere if that can be, else wait on: the revision has no engine of a role left that takes new legs."""
        ...

    def turned_away(self, status: HTTPStatus, retry_after: int) -> None:
        """Give up: there is too much to do. `retry_after` in seconds."""
        ...


class Ticket:
    """One turn's place. `tokens`: of its prompt, as long as prefill has not answered."""

    __slots__ = ("inside", "owner", "revision", "since", "tenant", "tokens")

    def __init__(self, revision: str, tenant: bytes, tokens: int, owner: Waiting, since: float) -> None:
        self.revision = revision
        self.tenant = tenant
        self.tokens = tokens
        self.owner = owner
        self.since = since
        self.inside = False


@dataclass(slots=True)
class _Queue:
    """One revision: what is under way, and who waits, by tenant; the tenant whose turn it is comes first."""

    turns: int = 0
    tokens: int = 0
    waiting: OrderedDict[bytes, deque[Ticket]] = field(default_factory=OrderedDict)
    length: int = 0
    usual_wait: float = 0.0
    pumping: bool = False

    def add(self, ticket: Ticket) -> None:
        self.waiting.setdefault(ticket.tenant, deque()).append(ticket)
        self.length += 1

    def remove(self, ticket: Ticket) -> None:
        of_tenant = self.waiting.get(ticket.tenant)
        if of_tenant is not None and ticket in of_tenant:
            of_tenant.remove(ticket)
            self.length -= 1
            if not of_tenant:
                del self.waiting[ticket.tenant]

    def tickets(self) -> list[Ticket]:
        """Return those who wait; a copy, for whoever hears of it may leave."""
        return [ticket for of_tenant in self.waiting.values() for ticket in of_tenant]

    def first(self) -> Ticket | None:
        return next(iter(self.waiting.values()))[0] if self.waiting else None

    def take(self, ticket: Ticket) -> None:
        """Take the first one out; its tenant's next one waits until the other tenants had their turn."""
        self.remove(ticket)
        if ticket.tenant in self.waiting:
            self.waiting.move_to_end(ticket.tenant)


class Admission:
    """The bounds of all revisions. `enter`, then `prefilled` and `leave`, each once; `tick` about once a second."""

    def __init__(
        self, *, fleet: Fleet, clock: Callable[[], float], counters: Counters, settings: QueueSettings
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._counters = counters
        self._settings = settings
        self._queues: dict[str, _Queue] = {}

    @property
    def waiting(self) -> int:
        """How many turns wait now."""
        return sum(queue.length for queue in self._queues.values())

    def enter(self, revision: str, tenant: bytes, tokens: int, owner: Waiting) -> Ticket:
        """Ask for a place: `inside` says whether the turn may start at once. If not, its owner hears more.

        It may hear that it is turned away before this returns.
        """
        queue = self._queues.get(revision)
        if queue is None:
            queue = self._queues[revision] = _Queue()
        ticket = Ticket(revision, tenant, tokens, owner, self._clock())
        if not queue.length and self._has_room(queue, ticket):
            self._let_in(queue, ticket)
            return ticket
        queue.add(ticket)
        if queue.length > self._settings.max_waiting:
            self._turn_one_away(queue)
        return ticket

    def _has_room(self, queue: _Queue, ticket: Ticket) -> bool:
        settings, fleet = self._settings, self._fleet
        if queue.turns >= settings.engine_turns * len(fleet.ready(ticket.revision, _DECODE)):
            return False
        most = settings.engine_prompt_tokens * len(fleet.ready(ticket.revision, _PREFILL))
        return queue.tokens + ticket.tokens <= most or not queue.tokens  # one alone may be larger than the bound

    @staticmethod
    def _let_in(queue: _Queue, ticket: Ticket) -> None:
        ticket.inside = True
        queue.turns += 1
        queue.tokens += ticket.tokens

    def _turn_one_away(self, queue: _Queue) -> None:
        """Turn away the newest of the tenant that has most waiting: whoever came last need not be to blame."""
        greediest = max(reversed(queue.waiting.values()), key=len)
        self._turn_away(queue, greediest[-1], HTTPStatus.TOO_MANY_REQUESTS)

    def _turn_away(self, queue: _Queue, ticket: Ticket, status: HTTPStatus) -> None:
        queue.remove(ticket)
        self._counters.queue["too-many" if status is HTTPStatus.TOO_MANY_REQUESTS else "too-long"] += 1
        retry_after = min(max(math.ceil(queue.usual_wait), 1), LONGEST_RETRY_AFTER_SECONDS)
        ticket.owner.turned_away(status, retry_after)

    def prefilled(self, ticket: Ticket) -> None:
        """Say that prefill has answered for the turn's prompt."""
        if ticket.inside and ticket.tokens:
            queue = self._queues[ticket.revision]
            queue.tokens -= ticket.tokens
            ticket.tokens = 0
            if queue.length:
                self._pump(queue)

    def leave(self, ticket: Ticket) -> None:
        """Give the place back, inside or in the queue."""
        queue = self._queues[ticket.revision]
        if not ticket.inside:
            queue.remove(ticket)
            return
        ticket.inside = False
        queue.turns -= 1
        queue.tokens -= ticket.tokens
        if queue.length:
            self._pump(queue)

    def _pump(self, queue: _Queue) -> None:
        """Let in whoever fits, in order: the first one is not overtaken by smaller ones."""
        if queue.pumping:
            return  # who is let in may end at once, and so come back here
        queue.pumping = True
        try:
            while (ticket := queue.first()) is not None and self._has_room(queue, ticket):
                queue.take(ticket)
                self._let_in(queue, ticket)
                waited = self._clock() - ticket.since
                queue.usual_wait += _NEWEST_WAIT_WEIGHT * (waited - queue.usual_wait)
                self._counters.queue["waited"] += 1
                ticket.owner.admitted()
        finally:
            queue.pumping = False

    def tick(self) -> None:
        """Turn away who has waited too long, let in whom new engines have room for, forget revisions that are gone.

        Who waits for a revision that has no engine of a role left is told.
        """
        oldest = self._clock() - self._settings.wait_seconds
        for revision, queue in list(self._queues.items()):
            for ticket in [ticket for ticket in queue.tickets() if ticket.since <= oldest]:
                self._turn_away(queue, ticket, HTTPStatus.SERVICE_UNAVAILABLE)
            if not self._fleet.complete(revision):
                for ticket in queue.tickets():
                    ticket.owner.stranded()
            self._pump(queue)
            if not queue.turns and not queue.length:
                del self._queues[revision]
