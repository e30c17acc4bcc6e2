"""The shared ledger in the store: what this router publishes, finds, borrows and withdraws there. See docs/design.

Every router owns what it published: it alone renews and releases. It shows that it lives by a beat; whoever has not
heard of a router for longer than any of its pulls can last adopts what it left behind.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import hiredis

from duplex_router.ledger.fates import Fate
from duplex_router.ledger.history import History
from duplex_router.ledger.ledger import Entry, Ledger
from duplex_router.ledger.record import Clocks, RecordError, decode_entry, encode_entry
from duplex_router.turn.shared import SharedView

from . import scripts
from .address import StoreSettings
from .counters import StoreCounters
from .depths import NEAR_MARKS, chosen_depths
from .link import Link, Nothing, Reply

BEAT_SECONDS = 0.5
THERE_SECONDS = 5.0
"""A router whose last beat is older does not count in the sharing of the budget."""

FENCE_SECONDS = 30.0
"""Without a confirmed beat for so long, a router no longer relies on owning what it has published."""

CLEAN_SECONDS = 10.0
"""How often all that is published is looked through."""

PUBLISHED_AT_ONCE = 64
MAX_RECORD_BYTES = 256 * 1024
_REPLACED, _KEPT = b"1", b"0"
_NO_ARGUMENTS = (b"", b"")

log = logging.getLogger(__name__)

Free = Callable[[list[Entry]], None]
"""Hears of entries that nobody reads any more."""


@dataclass(slots=True, eq=False)
class _Published:
    """What this router knows of an entry in the store. `life`: the server's when it first took the entry."""

    id: bytes
    life: bytes
    reader: bytes = b""


class StoreLedger:
    """See `SharedLedger`, and the module.

    `guarded`: whether pulls leave handles usable. `retired` is called when others' wishes have retired entries of the
    ledger. `pull_seconds`: longer than any pull of any router can last.
    """

    def __init__(
        self,
        settings: StoreSettings,
        ledger: Ledger,
        clock: Callable[[], float],
        *,
        guarded: Callable[[], bool],
        retired: Callable[[], None],
        pull_seconds: float,
        name: str = "",
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._guarded = guarded
        self._retired = retired
        self._pull_seconds = pull_seconds
        self._prefix = f"{{duplex:{settings.prefix}}}:".encode()
        self.me = f"{name}-{secrets.token_hex(8)}".encode()
        self.link = Link(settings, clock, self._greet)
        self.counters = StoreCounters()
        self.routers = 1
        """How many share the store, this one included."""
        self._known: dict[Entry, _Published] = {}
        self._by_id: dict[bytes, Entry] = {}
        self._unsent: dict[Entry, None] = {}
        self._withdrawn: dict[Entry, Free] = {}
        self._cooling: dict[Entry, Free] = {}
        self._flush_due = False
        self._leaving = False
        self._life = b""
        self._life_began = 0.0
        self._clean_at = 0.0
        self._store_ahead = 0.0
        """The store's clock less ours, at least."""

    # -- the store's clock

    def _clocks(self) -> Clocks:
        now = self._clock()
        return Clocks(own=now, wall=now + self._store_ahead)

    # -- look-ups

    def find(self, history: History, tenant: bytes, done: Callable[[Entry | None], None]) -> None:
        """See `SharedLedger`."""
        marks = [tenant + history.marks[depth - 1] for depth in chosen_depths(len(history.marks), NEAR_MARKS)]
        if not marks:
            asyncio.get_running_loop().call_soon(done, None)
            return
        guarded, reader, sent = self._guarded(), secrets.token_bytes(8), self._clock()
        if guarded:
            script, arguments = scripts.BORROW, (reader, b"%d" % (self._pull_seconds * 1000))
        else:
            script, arguments = scripts.TAKE, _NO_ARGUMENTS

        def answered(reply: Reply) -> None:
            entry = self._found(reply, sent, tenant, reader if guarded else b"")
            done(entry)

        def late(reply: Reply) -> None:
            entry = self._found(reply, sent, tenant, reader if guarded else b"")
            if entry is not None and guarded:
                self.give_back(entry, replaced=False)
            elif entry is not None:
                self._ledger.add(entry)  # it was taken, so it is ours; another turn may use it yet
                self.publish(entry)

        self.link.ask(script.call(self._prefix, *arguments, *marks), answered, late)

    def _found(self, reply: Reply, sent: float, tenant: bytes, reader: bytes) -> Entry | None:
        if isinstance(reply, Nothing):
            self.counters.lookups[reply.name.lower()] += 1
            return None
        self.counters.seconds.add(self._clock() - sent)
        if isinstance(reply, hiredis.ReplyError):
            self._refused(reply)
            self.counters.lookups["error"] += 1
            return None
        if not reply:
            self.counters.lookups["miss"] += 1
            return None
        entry = self._read(reply[1], reply[2], sent)
        if entry is None or entry.tenant != tenant:
            if reader:
                self._tell(scripts.GIVE_BACK, reply[0], reader, _KEPT)
            self.counters.lookups["invalid"] += 1
            return None
        if reader:
            entry.published = True
            self._known[entry] = _Published(reply[0], b"", reader)
        self.counters.lookups["hit"] += 1
        return entry

    def _read(self, record: bytes, left_ms: int, sent: float) -> Entry | None:
        """Return the entry of a record; None where it is no record of ours. Its time counts from before we asked."""
        try:
            entry = decode_entry(record, self._clocks())
        except RecordError as error:
            log.warning("the store holds something else than a handle: %s", error)
            return None
        entry.deadline = min(entry.deadline, sent + left_ms / 1000)
        return entry

    def give_back(self, entry: Entry, *, replaced: bool) -> None:
        """See `SharedLedger`."""
        known = self._known.pop(entry, None)
        if known is not None:
            self._tell(scripts.GIVE_BACK, known.id, known.reader, _REPLACED if replaced else _KEPT)

    def claim(self, entry: Entry, done: Callable[[bool], None]) -> None:
        """See `SharedLedger`."""
        known = self._forget(entry)
        if known is None:
            asyncio.get_running_loop().call_soon(done, False)
            return

        def answered(reply: Reply) -> None:
            self.counters.claims["ours" if reply == scripts.FREE else "lost"] += 1
            done(reply == scripts.FREE)

        def late(reply: Reply) -> None:
            if reply == scripts.FREE:  # nobody else has it, so it is as good as before
                entry.published = False
                self._ledger.add(entry)
                self.publish(entry)

        marks = self._index_of(entry)
        self.link.ask(scripts.WITHDRAW.call(self._prefix, known.id, self.me, *marks), answered, late)

    # -- publishing

    def publish(self, entry: Entry) -> None:
        """See `SharedLedger`."""
        self._unsent[entry] = None
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        for entry in [each for each in self._unsent if each.retired or each not in self._ledger]:
            del self._unsent[entry]
        for entry in list(self._unsent)[:PUBLISHED_AT_ONCE]:
            if not self.link.up:
                return
            if not self._send(entry):
                return  # the next beat goes on
            self._unsent.pop(entry, None)
        if self._unsent:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _send(self, entry: Entry) -> bool:
        """Publish an entry; false where the link takes no more now."""
        clocks = self._clocks()
        record = encode_entry(entry, clocks)
        if len(record) > MAX_RECORD_BYTES:
            self.counters.too_large += 1
            return True
        known = self._known.get(entry) or _Published(secrets.token_bytes(12), self._life)
        expiry = clocks.to_wall(entry.deadline)
        kept = expiry + FENCE_SECONDS + self._pull_seconds
        arguments = [known.id, record, self.me, entry.engine.encode(), entry.handle.boot.encode()]
        arguments += [b"%d" % (expiry * 1000), b"%d" % (kept * 1000), known.life]

        def answered(reply: Reply) -> None:
            self._refused(reply)
            if reply == scripts.NOT_OURS and entry.pulls == 0:
                self._ledger.take(entry, Fate.EXPIRED)
                self._forget(entry)
                self.counters.fenced += 1

        if not self._tell(scripts.PUBLISH, *arguments, *self._index_of(entry), done=answered):
            return False
        self._known[entry] = known
        self._by_id[known.id] = entry
        entry.published = True
        self.counters.published += 1
        return True

    @staticmethod
    def _index_of(entry: Entry) -> list[bytes]:
        return [entry.tenant + entry.marks[depth - 1] for depth in chosen_depths(len(entry.marks), NEAR_MARKS // 2)]

    def _forget(self, entry: Entry) -> _Published | None:
        self._unsent.pop(entry, None)
        known = self._known.pop(entry, None)
        if known is not None:
            self._by_id.pop(known.id, None)
        return known

    # -- withdrawing

    def withdraw(self, entries: Iterable[Entry], free: Free) -> None:
        """See `SharedLedger`."""
        for entry in entries:
            self._withdrawn[entry] = free
            self._try_to_withdraw(entry)

    def _try_to_withdraw(self, entry: Entry) -> None:
        known = self._known.get(entry)
        if known is None:
            self._leave_to_lapse(entry)
            return

        def answered(reply: Reply) -> None:
            if reply == scripts.FREE and entry in self._withdrawn:
                self._forget(entry)
                self._cooling[entry] = self._withdrawn.pop(entry)
                if known.life == self._life:
                    self._free(entry)
            elif reply == scripts.UNKNOWN:
                self._leave_to_lapse(entry)

        self._tell(scripts.WITHDRAW, known.id, self.me, *self._index_of(entry), done=answered)

    def _free(self, entry: Entry) -> None:
        self._cooling.pop(entry)([entry])

    def _leave_to_lapse(self, entry: Entry) -> None:
        if self._withdrawn.pop(entry, None) is not None:
            self.counters.unsure += 1
        self._forget(entry)

    def view(self) -> SharedView:
        """See `SharedLedger`."""
        return self.counters.view(up=self.link.prompt, why_down=self.link.why_down, routers=self.routers)

    # -- the beat

    async def run(self) -> None:
        """Stay connected and beat until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.link.run())
            group.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    def beat(self) -> None:
        """Show that this router lives, learn what others ask of it, and do again what did not get through."""
        self.link.check()
        now = self._clock()
        if now >= self._ledger.shared_until:
            self._fence()
        self._clean(now)
        if self._leaving or not self.link.up:
            return
        dead, there = self._dead_ms(), b"%d" % (THERE_SECONDS * 1000)
        self._tell(scripts.BEAT, self.me, dead, there, done=lambda reply: self._beaten(reply, now))
        for entry in list(self._withdrawn):
            self._try_to_withdraw(entry)
        self._flush()

    def _dead_ms(self) -> bytes:
        return b"%d" % ((FENCE_SECONDS + self._pull_seconds) * 1000)

    def _beaten(self, reply: Reply, sent: float) -> None:
        if isinstance(reply, (Nothing, hiredis.ReplyError)):
            self._refused(reply)
            return
        store_now, there, dead, asked = reply
        now = self._clock()
        # The store read its clock before now, so it is at least this far ahead: deadlines there are rather too early.
        self._store_ahead = store_now / 1000 - now
        if now - sent < self.link.settings.seconds:
            self.link.probed()
        self._ledger.shared_until = sent + FENCE_SECONDS
        self.routers = max(there, 1)
        for name in asked:
            entry = self._by_id.get(name)
            if entry is not None:
                self._ledger.retire(entry, Fate.REPLACED)
        if asked:
            self._retired()
        if dead:
            self._tell(scripts.ADOPT, self.me, dead, self._dead_ms(), done=lambda found: self._adopt(found, sent))

    def _adopt(self, found: Reply, sent: float) -> None:
        if isinstance(found, (Nothing, hiredis.ReplyError)):
            self._refused(found)
            return
        for name, record, left_ms, withdrawn, life in found:
            entry = self._read(record, left_ms, sent)
            if entry is None or not self._ledger.same_boot(entry):
                continue
            entry.published = True
            self._known[entry] = _Published(name, life)
            self._by_id[name] = entry
            self.counters.adopted += 1
            self._ledger.add(entry)
            if withdrawn:
                self._ledger.retire(entry, Fate.REPLACED)

    def _fence(self) -> None:
        """Forget what was published: by now others may have adopted and released it."""
        for entry in [each for each in self._by_id.values() if each.pulls == 0 and each in self._ledger]:
            self._ledger.take(entry, Fate.EXPIRED)
            self._forget(entry)
            self.counters.fenced += 1
        for entry in list(self._withdrawn):
            self._leave_to_lapse(entry)

    def _clean(self, now: float) -> None:
        """Forget what has lapsed, and what the ledger has dropped with its engine; release what has cooled down."""
        for entry in [each for each in self._withdrawn if each.deadline <= now]:
            self._leave_to_lapse(entry)
        if now >= self._clean_at:
            self._clean_at = now + CLEAN_SECONDS
            for entry in [each for each in self._by_id.values() if each.deadline <= now and each not in self._ledger]:
                self._forget(entry)
        if now > self._life_began + self._pull_seconds:
            # Pulls that an earlier life of the server knew of, and this one may not, are over.
            for entry in list(self._cooling):
                self._free(entry)

    # -- the connection

    async def _greet(self, link: Link) -> None:
        """Prepare a connection: the server's life and clock, then the scripts."""
        told = (await link.command(b"INFO", b"server")).split(b"\r\n")
        life = next((line for line in told if line.startswith(b"run_id:")), secrets.token_bytes(8))
        seconds, microseconds = await link.command(b"TIME")
        self._store_ahead = int(seconds) + int(microseconds) / 1e6 - self._clock()
        for script in scripts.ALL:
            await link.command(b"SCRIPT", b"LOAD", script.text)
        if life != self._life:
            # Another process, or the same one started anew: pulls that were noted a moment ago may be missing there.
            self._life, self._life_began = life, self._clock()
            for entry in self._ledger:
                self._unsent[entry] = None
        asyncio.get_running_loop().call_soon(self.beat)

    def _tell(self, script: scripts.Script, *arguments: bytes, done: Callable[[Reply], None] | None = None) -> bool:
        return self.link.tell(script.call(self._prefix, *arguments), done or self._refused)

    def _refused(self, reply: Reply) -> None:
        if isinstance(reply, hiredis.ReplyError):
            log.warning("the store refused a command: %s", reply)

    async def leave(self) -> None:
        """Say that this router ends and pulls nothing any more, so that others adopt what it leaves behind at once."""
        self._leaving = True
        while self._unsent and self.link.up:
            self._flush()
            await asyncio.sleep(0)
        gone: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def answered(reply: Reply) -> None:
            if not gone.done():
                gone.set_result(reply)

        if self._tell(scripts.LEAVE, self.me, done=answered):
            await gone
