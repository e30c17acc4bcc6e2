"""The fleet document's version, which grows with every change and only then, and who has applied it."""

from collections.abc import Callable
from typing import Any, Final

from duplex_operator.plan.observed import FleetVersion, Observed

Document = dict[str, Any]

ACKNOWLEDGE_SECONDS: Final = 60.0
"""How long routers that do not acknowledge a fleet document may hold up what depends on it."""


def version_of(document: Document | None) -> FleetVersion:
    """Return a document's version, (0, 0) where there is none or it is not readable."""
    match (document or {}).get("version"):
        case [int(term), int(counter)]:
            return term, counter
    return 0, 0


def next_fleet(
    newest: Document | None, term: int, document_at: Callable[[FleetVersion], Document]
) -> tuple[Document, bool]:
    """Return the document to have, and whether it differs from ``newest``, the newest that is known to be written.

    ``document_at`` makes the wanted document with a version. A leader's term stands first in the version, so that what
    a deposed leader writes is lower and routers ignore it. Where the Lease was deleted and its term is lower than
    what routers have seen, the seen term goes on: a document that routers ignore would help nobody.
    """
    seen = version_of(newest)
    unchanged = document_at(seen)
    if newest is not None and unchanged == newest:
        return newest, False
    return document_at((max(term, seen[0]), seen[1] + 1)), True


def ready_routers(observed: Observed) -> list[str]:
    """Return the pods of routers that clients reach."""
    return [pod.name for pod in observed.pods if pod.role == "router" and pod.ready and not pod.terminating]


def acknowledged(observed: Observed) -> bool:
    """Tell whether every ready router has applied the fleet document that is written, or has had its time to.

    A router that is not ready counts as none; one that does not answer is waited for within the bound.
    """
    if observed.fleet is None:
        return False
    version = version_of(observed.fleet)
    return observed.fleet_age >= ACKNOWLEDGE_SECONDS or all(
        name in observed.stats and observed.stats[name].fleet_version >= version for name in ready_routers(observed)
    )
