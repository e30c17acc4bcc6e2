"""The engines that are there now, from EndpointSlices or from a file, and what this router has in flight on each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from duplex_connector.contract import Port, Role

from .document import FleetDocument, FleetError, StaticEngines

LONGEST_REST_SECONDS: Final = 16.0
TRIAL_SECONDS: Final = 5.0
"""How long the one leg that tries a rested engine has for itself, before another may try."""

PARTNERS_THAT_CONDEMN: Final = 2
"""With so many partners an engine must have failed, and worked with none since, before it is blamed itself."""

_MOST_DOUBLINGS: Final = 32

SAME_LIFE_SECONDS: Final = 0.1
"""By so much a process may tell its beginning otherwise; none ends, starts anew and serves in less."""


def doubled(first: float, times: int, longest: float) -> float:
    """Return how many seconds to rest after doubling `first` so many times; an engine may be down for days."""
    return min(first * 2.0 ** min(times, _MOST_DOUBLINGS), longest)


def authority(host: str, port: int) -> bytes:
    """Return what a Host header has."""
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine as a source names it. `key` is the pod's uid, or host:port where there is no pod.

    `ready`: may get new legs. `serving`: answers at all; a terminating engine that serves may still be pulled from.
    """

    key: str
    host: str
    port: int
    pod: str = ""
    ready: bool = True
    serving: bool = True
    tls: bool = False


@dataclass(slots=True, eq=False)
class Engine:
    """One engine with what this router has in flight on it: legs, and prompt tokens not yet answered for."""

    key: str
    role: Role
    revision: str
    host: str
    port: int
    pod: str
    ready: bool
    serving: bool
    tls: bool = False
    draining: bool = False
    legs: int = 0
    waiting_tokens: int = 0
    failures: int = 0
    resting_until: float = 0.0
    kv_tokens: int | None = None
    kv_use: float | None = None
    """Which part of its KV cache is in use, as it said when last asked."""
    kv_bytes_per_token: int | None = None
    ready_since: float = -math.inf
    """When it joined others that were ready already; the distant past for one that started with them."""
    heard_at: float = -math.inf
    """When it last answered anything."""
    boot: str = ""
    """The boot that its handles name; empty until the first."""
    process_began: float | None = None
    """Unix time at which its process began, as it said when last asked."""
    boot_then: str = ""
    """The boot that its handles named at that time."""
    address: bytes = b""
    """The authority, as a Host header has it."""
    failed_with: set[str] = field(default_factory=set)
    """Partners with which transfers failed since the last one that worked."""

    @property
    def name(self) -> str:
        """What people call it: its pod's name, or host:port where there is no pod."""
        return self.pod or self.key

    def takes_legs(self) -> bool:
        """Tell whether new legs may go to it."""
        return self.ready and not self.draining

    def failed(self, now: float) -> None:
        """Count a failure of the engine itself: it rests for a second, longer with each further one."""
        self.failures += 1
        self.resting_until = now + doubled(1.0, self.failures - 1, LONGEST_REST_SECONDS)

    def try_again(self, now: float) -> None:
        """Say that a leg goes to it: if it has rested after failures, that leg is its trial, and others wait for it.

        A trial that ends without a result (its client has left) blocks nothing: the next one follows.
        """
        if self.failures:
            self.resting_until = now + TRIAL_SECONDS

    def answered(self, now: float) -> None:
        """Count a leg that went well."""
        self.failures = 0
        self.resting_until = 0.0
        self.heard_at = now

    def restarted(self, process_began: float | None) -> bool:
        """Take when its process began; tell whether that is a new life of which no handle has told yet."""
        known, known_boot = self.process_began, self.boot_then
        self.process_began, self.boot_then = process_began, self.boot
        if known is None or process_began is None or abs(process_began - known) < SAME_LIFE_SECONDS:
            return False
        return self.boot == known_boot

    def failed_a_transfer(self, partner: str, now: float) -> None:
        """Count a transfer that failed: with one partner alone it is the pair's fault, with more the engine's own."""
        self.failed_with.add(partner)
        if len(self.failed_with) >= PARTNERS_THAT_CONDEMN:
            self.failed_with.clear()
            self.failed(now)


def static_endpoints(urls: Iterable[str]) -> list[Endpoint]:
    """Return the endpoints that a file's URLs name. Raises FleetError."""
    endpoints = []
    for url in urls:
        parts = urlsplit(url)
        try:
            port = parts.port or Port.API
        except ValueError as error:
            raise FleetError(f"engine {url!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise FleetError(f"engine {url!r} must be given as http://host:port or https://host:port")
        endpoints.append(Endpoint(f"{parts.hostname}:{port}", parts.hostname, port, tls=parts.scheme == "https"))
    return endpoints


Membership = dict[str, list[Endpoint]]
"""Endpoints by the name of their Service."""


def members_of(document: FleetDocument, services: Membership) -> list[tuple[str, Role, Endpoint]]:
    """Return (revision, role, endpoint) of every engine that the document names and a source knows."""
    members = []
    for revision in document.revisions:
        urls: StaticEngines | None = revision.engines
        for role, service in ((Role.PREFILL, revision.prefill), (Role.DECODE, revision.decode)):
            if urls is not None:
                endpoints = static_endpoints(urls.prefill if role is Role.PREFILL else urls.decode)
            else:
                endpoints = services.get(service, [])
            members += [(revision.name, role, endpoint) for endpoint in endpoints]
    return members
