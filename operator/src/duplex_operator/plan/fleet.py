"""The version of the fleet document: it grows with every change and only then, across leaders."""

from collections.abc import Callable
from typing import Any

from duplex_operator.plan.observed import FleetVersion

Document = dict[str, Any]


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
