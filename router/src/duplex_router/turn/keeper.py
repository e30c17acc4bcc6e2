"""The keeper: sends engines what ends or prolongs their holds, by requests that they refuse before they cost anything.

A guarded decode engine takes deadlines for many holds in one message; of a stock one only a release is possible,
which any prefill engine of its revision passes on.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from duplex_router.fleet.document import Policy
from duplex_router.fleet.engines import Engine
from duplex_router.fleet.fleet import Fleet
from duplex_router.fleet.terms import terms_of
from duplex_router.ledger.ledger import Entry, Ledger
from duplex_router.wire.params import Handle, lease_body, renewals

from .counters import Counters
from .legs import Answer, Failure, Transport, WholeAnswer
from .shared import SharedLedger

LEASE_PATH: Final = b"/v1/completions"
LEASE_SECONDS: Final = 5.0
MAX_TRIES: Final = 3
MAX_HOLDS_PER_MESSAGE: Final = 256
LEAST_GAIN_SECONDS: Final = 1.0
LIKELY: Final = 0.1
"""The chance of return within one more lease from which a hold is kept beyond its ttl."""

_HEADERS: Final = b"content-type: application/json\r\n"
_REFUSED_LOGIN: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


@dataclass(slots=True)
class _Message:
    """`choose` says where to send it, at each try anew; None: there is nobody (left) to take it."""

    choose: Callable[[], Engine | None]
    params: bytes
    kind: str
    renewed: dict[Entry, float] = field(default_factory=dict)
    sent: float = 0.0
    tries: int = 0
    holder: str = ""


class Keeper:
    """Owns every message about holds. `outstanding` are those that no engine has confirmed yet.

    Releases of one guarded engine's holds go one message at a time: those that come up meanwhile go in the next, many
    in one, so that they cost little under load and nothing waits without it.
    """

    def __init__(
        self, *, ledger: Ledger, fleet: Fleet, transport: Transport, clock: Callable[[], float], counters: Counters
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._transport = transport
        self._clock = clock
        self._counters = counters
        self._again: list[_Message] = []
        self._renewing: set[Entry] = set()
        self._releasing: set[str] = set()
        self._to_release: dict[str, list[str]] = {}
        self.outstanding = 0
        self.shared: SharedLedger | None = None

    def flush(self) -> None:
        """Release the holds that the ledger has done with; what other routers may read, once they do not."""
        due = self._ledger.due_releases()
        if self.shared is not None:
            published = [entry for entry in due if entry.published]
            if published:
                self.shared.withdraw(published, self._release_entries)
                due = [entry for entry in due if not entry.published]
            for entry in self._ledger.due_returns():
                self.shared.give_back(entry, replaced=entry.retired)
        self._release_entries(due)

    def _release_entries(self, entries: list[Entry]) -> None:
        if entries:
            self._counters.holds_ended["released"] += len(entries)
            self._release([(entry.handle, entry.engine, entry.revision) for entry in entries])

    def release_unowned(self, handle: Handle, engine: str, revision: str) -> None:
        """Release a hold that will not enter the ledger."""
        self._counters.holds_ended["unowned"] += 1
        self._release([(handle, engine, revision)])

    def release_spent(self, entry: Entry) -> None:
        """Release what may be left of a stock engine's handle that was given to a leg that failed."""
        self._counters.holds_ended["spent"] += 1
        self._release([(entry.handle, entry.engine, entry.revision)])

    def release_hand_off(self, params: bytes, revision: str) -> None:
        """Free what a prefill engine holds for a decode leg that will not come: a refused request says so to it."""
        self._send(_Message(functools.partial(self._fleet.pick_decode, revision), params, "hand-off"))

    def tick(self) -> None:
        """Once a second: drop what has lapsed, renew what lives, and try lost messages again."""
        due, lapsed = self._ledger.due()
        self._counters.holds_ended["lapsed"] += lapsed
        policy = self._fleet.document.policy if self._fleet.document is not None else None
        if policy is not None and (not policy.bidirectional or policy.ttl_seconds == 0):
            self._ledger.retire_all()  # nothing shall be held any more, and what was held is of no use
        self.flush()
        self._renew_living(due)
        again, self._again = self._again, []
        for message in again:
            self._send(message)

    def _release(self, holds: Iterable[tuple[Handle, str, str]]) -> None:
        guarded = self.guarded()
        holders: dict[str, None] = {}
        for handle, engine, revision in holds:
            if engine not in self._fleet.engines:
                continue  # gone, and its memory with it
            if guarded:
                self._to_release.setdefault(engine, []).append(handle.request_id)
                holders[engine] = None
            else:
                self._send(_Message(functools.partial(self._fleet.pick_prefill, revision), handle.release(), "release"))
        for holder in holders:
            self._release_next(holder)

    def _release_next(self, holder: str) -> None:
        waiting = self._to_release.get(holder)
        if waiting is None or holder in self._releasing:
            return
        part, rest = waiting[:MAX_HOLDS_PER_MESSAGE], waiting[MAX_HOLDS_PER_MESSAGE:]
        if rest:
            self._to_release[holder] = rest
        else:
            del self._to_release[holder]
        self._releasing.add(holder)
        params = renewals(dict.fromkeys(part, 0))
        self._send(_Message(functools.partial(self._fleet.engines.get, holder), params, "release", holder=holder))

    def guarded(self) -> bool:
        """Whether the engines prove what they pull, so that a pull does not use a handle up."""
        document = self._fleet.document
        return document is not None and terms_of(document).guarded

    def _renew_living(self, due: list[Entry]) -> None:
        """Renew the leases that have run half and whose conversations live; the others lapse."""
        document, now = self._fleet.document, self._clock()
        policy = document.policy if document is not None else None
        half = policy.lease / 2 if policy is not None else 0.0
        by_engine: dict[str, dict[Entry, float]] = {}
        for entry in due:
            if entry not in self._ledger:
                continue  # released a moment ago
            left = entry.deadline - now
            # A conversation may become likelier to return as its lease ends: it is looked at again and again then.
            self._ledger.looks.put(entry, now + max(left - half if left >= half else left / 2, 1.0))
            if policy is None or left >= half or entry in self._renewing or not self.guarded():
                continue
            seconds = min(policy.lease, self._lives_until(entry, policy, now) - now)
            if seconds - left >= LEAST_GAIN_SECONDS and entry.engine in self._fleet.engines:
                by_engine.setdefault(entry.engine, {})[entry] = round(seconds, 3)
        for key, leases in by_engine.items():
            items = iter(leases.items())
            while part := dict(itertools.islice(items, MAX_HOLDS_PER_MESSAGE)):
                self._renew(key, part)

    def _lives_until(self, entry: Entry, policy: Policy, now: float) -> float:
        """Return until when a hold is worth keeping, as seen now.

        The ttl since its last use; longer, up to the longest hold, while a turn uses it or is likely to.
        """
        longest = entry.created + policy.max_hold_seconds
        in_use = entry.turns > 0 or entry.pulls > 0
        if entry.retired:
            return longest if in_use else now
        if in_use or self._ledger.likely(entry, policy.lease) >= LIKELY:
            return longest
        return min(entry.used + policy.ttl_seconds, longest)

    def _renew(self, holder: str, leases: dict[Entry, float]) -> None:
        params = renewals({entry.handle.request_id: seconds for entry, seconds in leases.items()})
        self._renewing.update(leases)
        self._send(_Message(functools.partial(self._fleet.engines.get, holder), params, "renew", renewed=leases))

    def _send(self, message: _Message) -> None:
        engine = message.choose()
        if engine is None:
            self._close(message, delivered=False)
            return
        message.tries += 1
        message.sent = self._clock()
        self.outstanding += 1
        receiver = WholeAnswer(lambda result: self._confirmed(message, engine, result))
        receiver.exchange = self._transport.request(
            engine, LEASE_PATH, _HEADERS, [lease_body(message.params)], receiver, seconds=LEASE_SECONDS
        )

    def _confirmed(self, message: _Message, engine: Engine, result: Answer | Failure) -> None:
        self.outstanding -= 1
        if isinstance(result, Failure):
            engine.failed(self._clock())
        delivered = (
            isinstance(result, Answer)
            and result.status < HTTPStatus.INTERNAL_SERVER_ERROR
            and result.status not in _REFUSED_LOGIN
        )
        if delivered or message.tries >= MAX_TRIES:
            self._close(message, delivered=delivered)
        else:
            self._again.append(message)
            self._answered(message)

    def _answered(self, message: _Message) -> None:
        if message.holder:
            self._releasing.discard(message.holder)
            self._release_next(message.holder)

    def _close(self, message: _Message, *, delivered: bool) -> None:
        self._counters.lease_messages[message.kind if delivered else f"{message.kind}-failed"] += 1
        self._renewing.difference_update(message.renewed)
        if delivered:
            self._move_deadlines(message)
        self._answered(message)

    def _move_deadlines(self, message: _Message) -> None:
        for entry, seconds in message.renewed.items():
            # From the moment of sending, and from the latest that the old deadline can have been: never too late.
            gain = message.sent + seconds - entry.deadline
            if gain > 0:
                entry.deadline += gain
                if entry.handle.expiry is not None:
                    entry.handle.expiry += gain
                if self.shared is not None:
                    self.shared.publish(entry)
