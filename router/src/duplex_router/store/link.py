"""One connection to the store, kept up in the background: pipelined commands, replies by callback, never awaited.

A turn that asks waits at most as long as it says; the reply that comes later is still read, because what it tells may
have to be undone. Several timeouts in a row, or a lost connection, open a circuit: until the store has answered a
probe, nobody waits for it at all.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import hiredis

from .address import StoreAddressError, StoreSettings

CONNECT_SECONDS = 2.0
SILENCE_SECONDS = 2.0
"""After so long without the reply to the oldest command the connection is given up."""

RETRY_SECONDS = (0.1, 2.0)
"""First and longest pause between two tries to connect."""

TIMEOUTS_IN_A_ROW = 2
MAX_PENDING = 4096
MAX_REPLY_BYTES = 16 * 1024 * 1024

log = logging.getLogger(__name__)


class Nothing(Enum):
    """Why there is no reply."""

    LATE = auto()
    LOST = auto()
    CLOSED = auto()
    """Not asked at all: the circuit is open, or too much waits already."""


Reply = Any
"""What the server said: bytes, an int, None, a list of them, or hiredis.ReplyError."""

Taker = Callable[[Reply], None]


@dataclass(slots=True, eq=False)
class _Request:
    """`open`: `done` has not been called yet. `due` is infinite where nobody waits."""

    done: Taker
    sent: float
    late: Taker | None = None
    due: float = math.inf
    open: bool = True

    @property
    def timed(self) -> bool:
        return self.due is not math.inf


@dataclass(slots=True)
class LinkCounters:
    """What became of commands that somebody waited for."""

    answered: int = 0
    late: int = 0
    lost: int = 0
    closed: int = 0
    connected: int = 0


class _Wire(asyncio.Protocol):
    """The socket: hands bytes to the parser and replies to the link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._reader = hiredis.Reader(protocolError=hiredis.ProtocolError)
        self._unparsed = 0
        self.transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # of a TCP connection

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        try:
            self._reader.feed(data)
            reply = self._reader.gets()
            while reply is not False:
                self._unparsed = 0
                self._link.replied(self, reply)
                reply = self._reader.gets()
        except hiredis.ProtocolError as error:
            log.error("the store does not speak its protocol: %s", error)  # noqa: TRY400 - the message says it all
            self.abort()
        if self._unparsed > MAX_REPLY_BYTES:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it was lost makes no difference
        if not self.closed.done():
            self.closed.set_result(None)
        self._link.disconnected(self)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


@dataclass
class Link:
    """See the module. `greet` is awaited on each new connection before anybody else may use it.

    `up` tells whether commands may be given; `prompt` whether somebody may wait for one.
    """

    settings: StoreSettings
    clock: Callable[[], float]
    greet: Callable[[Link], Any]
    counters: LinkCounters = field(default_factory=LinkCounters)
    up: bool = False
    why_down: str = "not connected yet"
    _wire: _Wire | None = None
    _pending: deque[_Request] = field(default_factory=deque)
    _timed: deque[_Request] = field(default_factory=deque)
    _timer: asyncio.TimerHandle | None = None
    _timeouts: int = 0

    @property
    def prompt(self) -> bool:
        """Whether the store answers in time, as far as is known."""
        return self.up and self._timeouts < TIMEOUTS_IN_A_ROW

    def ask(self, command: Sequence[bytes], done: Taker, late: Taker | None = None) -> None:
        """Send a command that somebody waits for: `done` hears the reply, or in time why there is none.

        `late` hears a reply that comes after that. Neither is called before this has returned.
        """
        if not self.prompt or len(self._pending) >= MAX_PENDING:
            self.counters.closed += 1
            asyncio.get_running_loop().call_soon(done, Nothing.CLOSED)
            return
        now = self.clock()
        request = _Request(done, now, late, now + self.settings.seconds)
        self._timed.append(request)
        self._write(command, request)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.settings.seconds, self._expire)

    def tell(self, command: Sequence[bytes], done: Taker | None = None) -> bool:
        """Send a command that nobody waits for; false where it cannot be sent now."""
        if not self.up or len(self._pending) >= MAX_PENDING:
            return False
        self._write(command, _Request(done or _ignore, self.clock()))
        return True

    async def command(self, *command: bytes) -> Reply:
        """Send a command and await its reply; for `greet`. Raises ConnectionError or hiredis.ReplyError."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def done(reply: Reply) -> None:
            if not future.done():
                future.set_result(reply)

        self._write(command, _Request(done, self.clock()))
        reply = await future
        if isinstance(reply, Nothing):
            raise ConnectionError("the connection ended")
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def _write(self, command: Sequence[bytes], request: _Request) -> None:
        if self._wire is None or self._wire.transport is None:
            asyncio.get_running_loop().call_soon(request.done, Nothing.LOST)
            return
        self._pending.append(request)
        packed = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub names a tuple of one
        self._wire.transport.write(packed)

    # -- replies

    def replied(self, wire: _Wire, reply: Reply) -> None:
        """Take one reply: the server answers in order."""
        if wire is not self._wire or not self._pending:
            wire.abort()
            return
        request = self._pending.popleft()
        if not request.open:
            if request.late is not None:
                request.late(reply)
            return
        request.open = False
        if request.timed:
            self._timeouts = 0
            self.counters.answered += 1
        request.done(reply)

    def _expire(self) -> None:
        """Tell those who have waited long enough; all wait equally long, so the first in line is due first."""
        self._timer = None
        now = self.clock()
        while self._timed and (not self._timed[0].open or self._timed[0].due <= now):
            request = self._timed.popleft()
            if request.open:
                request.open = False
                self._timeouts += 1
                self.counters.late += 1
                request.done(Nothing.LATE)
        if self._timed:
            wait = max(self._timed[0].due - now, 0.001)
            self._timer = asyncio.get_running_loop().call_later(wait, self._expire)

    def disconnected(self, wire: _Wire) -> None:
        """Tell everybody that no reply will come."""
        if wire is not self._wire:
            return
        self._wire, self.up = None, False
        pending, self._pending = self._pending, deque()
        self._timed.clear()
        for request in pending:
            if request.open:
                request.open = False
                self.counters.lost += request.timed
                request.done(Nothing.LOST)

    # -- the connection

    def probed(self) -> None:
        """Say that the store has just answered something else in time: the circuit closes."""
        self._timeouts = 0

    def check(self) -> None:
        """Give up a connection whose oldest command has had no reply for too long; to be called now and then."""
        if self._pending and self.clock() - self._pending[0].sent > SILENCE_SECONDS and self._wire is not None:
            self._down("it does not answer")
            self._wire.abort()

    def _down(self, why: str) -> None:
        if self.why_down != why:
            log.warning("the store is not used: %s", why)
        self.up, self.why_down = False, why

    async def run(self) -> None:
        """Stay connected until cancelled."""
        pause = RETRY_SECONDS[0]
        try:
            while True:
                if await self._connected_once():
                    pause = RETRY_SECONDS[0]
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads reconnects, no secret
                pause = min(pause * 2, RETRY_SECONDS[1])
        finally:
            self.close()

    async def _connected_once(self) -> bool:
        """Connect, log in and wait for the end; true where the connection was of use."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                wire = await self._connect()
        except (OSError, StoreAddressError, TimeoutError, hiredis.ReplyError) as error:
            if self._wire is not None:
                self._wire.abort()
            self._down(str(error) or "it does not answer")
            return False
        self.up, self.why_down, self._timeouts = True, "", 0
        self.counters.connected += 1
        log.info("connected to the store")
        await wire.closed
        if not self.why_down:
            self._down("the connection ended")
        return True

    async def _connect(self) -> _Wire:
        address = self.settings.address()
        tls = self.settings.tls() if address.tls else None
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: _Wire(self), address.host, address.port, ssl=tls)
        self._wire, self._pending = wire, deque()
        if address.password:
            user = [address.user.encode()] if address.user else []
            await self.command(b"AUTH", *user, address.password.encode())
        if address.database:
            await self.command(b"SELECT", b"%d" % address.database)
        await self.greet(self)
        return wire

    def close(self) -> None:
        """Close the connection."""
        self.up = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._wire is not None and self._wire.transport is not None:
            self._wire.transport.close()


def _ignore(reply: Reply) -> None:
    """Nobody waits for this reply."""
    if isinstance(reply, hiredis.ReplyError):
        log.warning("the store refused a command: %s", reply)
