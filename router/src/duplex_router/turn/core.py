"""What all turns of a router share, the settings of their legs, and the client's side as a turn sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from duplex_router.fleet.fleet import Fleet
from duplex_router.fleet.models import Models
from duplex_router.ledger.latest import Latest
from duplex_router.ledger.ledger import Ledger
from duplex_router.wire.heads import Headers

from .admission import Admission, QueueSettings
from .counters import Counters
from .keeper import Keeper
from .legs import Transport
from .offer import Offers
from .record import Explanations, TurnRecord
from .shared import SharedLedger
from .templates import Templates

JSON_TYPE: Final = (b"content-type", b"application/json")
MAX_SESSIONS: Final = 65536


class Client(Protocol):
    """The client's connection."""

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        ...

    def start(self, status: int, headers: Headers) -> None:
        """Start an answer that is streamed in chunks."""
        ...

    def write(self, data: bytes) -> None:
        """Send a part of it, framed in chunks; the last part ends with the last chunk."""
        ...

    def end(self) -> None:
        """Say that the streamed answer is complete."""
        ...

    def break_off(self) -> None:
        """Close the connection so that the client sees that the answer is not complete."""
        ...


@dataclass(frozen=True, slots=True)
class LegSettings:
    """Deadlines in seconds: the prefill leg, the decode leg's first token, and silence within a stream after that."""

    prefill_seconds: float = 120.0
    decode_seconds: float = 300.0
    silence_seconds: float = 120.0
    pull_grace_seconds: float = 5.0
    gone_grace_seconds: float = 0.02


_NO_ENGINES: Final = ("", "")


class Sessions:
    """Which engines a client's session used last: affinity only, bounded, oldest out first."""

    def __init__(self, limit: int = MAX_SESSIONS) -> None:
        self._engines: Latest[bytes, tuple[str, str]] = Latest(limit)

    def get(self, session: bytes) -> tuple[str, str]:
        """Return the keys of the last prefill and decode engine; empty where not known."""
        return self._engines.get(session) or _NO_ENGINES

    def set(self, session: bytes, prefill: str, decode: str) -> None:
        """Keep the engines that a session used."""
        self._engines.set(session, (prefill, decode))


@dataclass(slots=True)
class Core:
    """What all turns share. `later` runs a function after so many seconds."""

    fleet: Fleet
    ledger: Ledger
    keeper: Keeper
    transport: Transport
    clock: Callable[[], float]
    later: Callable[[float, Callable[[], None]], object]
    counters: Counters = field(default_factory=Counters)
    explanations: Explanations = field(default_factory=Explanations)
    templates: Templates = field(default_factory=Templates)
    models: Models = field(default_factory=Models)
    sessions: Sessions = field(default_factory=Sessions)
    settings: LegSettings = field(default_factory=LegSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    shared: SharedLedger | None = None
    trace_sample: float | None = None
    """The share of turns without a trace of their own that get one; None: nothing is traced here."""
    observers: list[Callable[[TurnRecord], None]] = field(default_factory=list)
    offers: Offers = field(init=False)
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        """Build what is made of the other parts."""
        self.offers = Offers(self.fleet, self.ledger, self.templates)
        self.admission = Admission(fleet=self.fleet, clock=self.clock, counters=self.counters, settings=self.queue)
