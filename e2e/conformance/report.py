"""The table that a run leaves: every check with what stock, guarded and plain engines answered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

_SHOWN: Final = 3


@dataclass(frozen=True)
class Row:
    """One observation. `answer`: `right`, `wrong`, an HTTP status, `hang`, `engine dead`, or a count.

    `tokens` and `plain`: the pair's and the plain engine's answer to the same prompt, where the check compares them.
    """

    check: str
    connector: str
    answer: str
    pulled: int | None = None
    note: str = ""
    tokens: tuple[int, ...] = ()
    plain: tuple[int, ...] = ()


@dataclass
class Report:
    """Collects rows; written as JSON and as a Markdown table: each connector's answer beside the plain engine's."""

    engine: str
    rows: list[Row] = field(default_factory=list)

    def add(
        self,
        check: str,
        connector: str,
        answer: str,
        *,
        pulled: int | None = None,
        note: str = "",
        tokens: Sequence[int] = (),
        plain: Sequence[int] = (),
    ) -> None:
        """Add one observation."""
        self.rows.append(Row(check, connector, answer, pulled, note, tuple(tokens), tuple(plain)))

    def table(self) -> str:
        """Return the Markdown table."""
        checks = list(dict.fromkeys(row.check for row in self.rows))
        lines = [f"| check ({self.engine}) | stock | plain | guarded | plain |", "|---|---|---|---|---|"]
        for check in checks:
            cells = []
            for connector in ("stock", "guarded"):
                found = [row for row in self.rows if row.check == check and row.connector == connector]
                cells.append("; ".join(dict.fromkeys(map(self._cell, found))) or "-")
                cells.append("; ".join(dict.fromkeys(_start(row.plain) for row in found)) or "-")
            lines.append(f"| {check} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    @staticmethod
    def _cell(row: Row) -> str:
        tokens = f": {_start(row.tokens)}" if row.tokens else ""
        pulled = "" if row.pulled is None else f", {row.pulled} pulled"
        return f"{row.answer}{tokens}{pulled}" + (f" ({row.note})" if row.note else "")

    def write(self, folder: Path) -> None:
        """Write `<engine>.json` and `<engine>.md`."""
        folder.mkdir(parents=True, exist_ok=True)
        rows = [asdict(row) for row in self.rows]
        (folder / f"{self.engine}.json").write_text(json.dumps(rows, indent=1) + "\n")
        (folder / f"{self.engine}.md").write_text(self.table())


def _start(tokens: Sequence[int]) -> str:
    """Return the first tokens of an answer, enough to tell two apart."""
    return " ".join(map(str, tokens[:_SHOWN])) + (" …" if len(tokens) > _SHOWN else "")
