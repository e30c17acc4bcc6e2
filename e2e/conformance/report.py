"""The table that a run leaves: every check with what stock, guarded and plain engines answered."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One observation. `answer`: `right`, `wrong`, an HTTP status, `hang`, `engine dead`, or a count."""

    check: str
    connector: str
    answer: str
    pulled: int | None = None
    note: str = ""


@dataclass
class Report:
    """Collects rows; written as JSON and as a Markdown table with one column per connector."""

    engine: str
    rows: list[Row] = field(default_factory=list)

    def add(self, check: str, connector: str, answer: str, *, pulled: int | None = None, note: str = "") -> None:
        """Add one observation."""
        self.rows.append(Row(check, connector, answer, pulled, note))

    def table(self) -> str:
        """Return the Markdown table."""
        checks = list(dict.fromkeys(row.check for row in self.rows))
        lines = [f"| check ({self.engine}) | stock | guarded |", "|---|---|---|"]
        for check in checks:
            cells = []
            for connector in ("stock", "guarded"):
                found = [row for row in self.rows if row.check == check and row.connector == connector]
                cells.append("; ".join(dict.fromkeys(self._cell(row) for row in found)) or "-")
            lines.append(f"| {check} | {cells[0]} | {cells[1]} |")
        return "\n".join(lines) + "\n"

    @staticmethod
    def _cell(row: Row) -> str:
        pulled = "" if row.pulled is None else f", {row.pulled} pulled"
        return f"{row.answer}{pulled}" + (f" ({row.note})" if row.note else "")

    def write(self, folder: Path) -> None:
        """Write `<engine>.json` and `<engine>.md`."""
        folder.mkdir(parents=True, exist_ok=True)
        rows = [asdict(row) for row in self.rows]
        (folder / f"{self.engine}.json").write_text(json.dumps(rows, indent=1) + "\n")
        (folder / f"{self.engine}.md").write_text(self.table())
