"""How far a stock engine's handle may be trusted, whose tokens nobody proves."""

from __future__ import annotations

from .history import History
from .ledger import Ledger, Match


class Boundary:
    """How many tokens of a former prompt are surely those of a request, for engines that prove nothing."""

    __slots__ = ("reason", "tokens")

    def __init__(self, tokens: int = 0, reason: str = "") -> None:
        self.tokens = tokens
        self.reason = reason


def unproved_tokens(ledger: Ledger, match: Match, history: History) -> Boundary:
    """Return how far a stock engine's handle may be trusted: to a prompt's end, never into a reply.

    Only where the match goes deeper than any history that two live entries share, since the handle is used up.
    """
    entry = match.entry
    if entry is None:
        return Boundary(reason=match.reason)
    exact = history.tokens_at(match.depth)
    known = [(depth, tokens) for depth, tokens in entry.tokens_known if depth <= match.depth]
    if exact is not None:
        known.append((match.depth, exact))
    if not known:
        return Boundary(reason="unproved")
    depth, tokens = max(known)
    if ledger.shared(history, depth, entry.tenant):
        return Boundary(reason="shared-history")
    return Boundary(tokens=tokens)
