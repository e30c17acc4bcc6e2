"""What each scenario did: turns served, turns that kept their KV, and engines or routers that were killed meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .conversation import Turn


@dataclass
class Tally:
    """One scenario's counts. `later`: turns that continue a conversation, so that there was KV to keep."""

    name: str
    turns: int = 0
    later: int = 0
    kept: int = 0
    kills: int = 0

    def take(self, turns: Iterable[Turn]) -> None:
        """Count turns that were answered, and answered right."""
        for turn in turns:
            self.turns += 1
            self.later += turn.turn > 1
            self.kept += bool(turn.pulled_tokens)

    def row(self) -> str:
        """Return the counts as they are shown."""
        share = f"{self.kept} of {self.later}" if self.later else "-"
        return f"{self.turns:>6}  {share:>12}  {self.kills:>5}  {self.name}"


HEADER = f"{'turns':>6}  {'kept their KV':>12}  {'kills':>5}  scenario"


def table(tallies: Iterable[Tally]) -> list[str]:
    """Return the lines of a table of scenarios, with their sum."""
    rows = list(tallies)
    total = Tally("all scenarios")
    for each in rows:
        total.turns += each.turns
        total.later += each.later
        total.kept += each.kept
        total.kills += each.kills
    return [HEADER, *(each.row() for each in [*rows, total])]
