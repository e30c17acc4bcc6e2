"""The engines that are there now, from EndpointSlices or from a file, and what this router has in flight on each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from duplex_connector.contract import Port, Role

from .document import FleetDocument, FleetError, StaticEngines


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
    draining: bool = False
    legs: int = 0
    waiting_tokens: int = 0
    failures: int = 0
    resting_until: float = 0.0
    kv_tokens: int | None = None
    kv_bytes_per_token: int | None = None

    @property
    def address(self) -> bytes:
        """The engine's authority, as a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode()

    def takes_legs(self) -> bool:
        """Tell whether new legs may go to it."""
        return self.ready and not self.draining

    def failed(self, now: float) -> None:
        """Count a failure of the engine itself: it rests for a second, longer with each further one."""
        self.failures += 1
        self.resting_until = now + min(2.0 ** (self.failures - 1), 16.0)

    def answered(self) -> None:
        """Count a sign of life."""
        self.failures = 0
        self.resting_until = 0.0


def static_endpoints(urls: Iterable[str]) -> list[Endpoint]:
    """Return the endpoints that a file's URLs name. Raises FleetError."""
    endpoints = []
    for url in urls:
        parts = urlsplit(url)
        try:
            port = parts.port or Port.API
        except ValueError as error:
            raise FleetError(f"engine {url!r}: {error}") from error
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise FleetError(f"engine {url!r} must be given as http://host:port")
        endpoints.append(Endpoint(f"{parts.hostname}:{port}", parts.hostname, port))
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
