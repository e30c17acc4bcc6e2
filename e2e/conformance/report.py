"""The table that a run leaves: every check with what stock, guarded and plain engines answered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

_SHOWN: Final = 3
_SIMULATOR: Final = "simulator"
_FAILED: Final = "CHECK FAILED"
_NOT_AS_PLAIN: Final = frozenset({"wrong", "hang", "engine dead", "500"})
"""Answers that a plain engine does not give."""


@dataclass(frozen=True)
class Row:
    """One observation. `answer`: `right`, `wrong`, an HTTP status, `hang`, `engine dead`, or a count.

    `note`: what may differ from engine to engine. `tokens` and `plain`: the pair's and the plain engine's answer to the
    same prompt, where the check compares them.
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
    """Collects rows, and how each check ended; written as JSON and as a Markdown table with a line that sums it up.

    `engine`: `simulator`, `vllm`, or the latter with another release's Python code. `passed`: (connector, whether the
    check passed) by the check's id in pytest.
    """

    engine: str
    version: str = ""
    rows: list[Row] = field(default_factory=list)
    passed: dict[str, tuple[str, bool]] = field(default_factory=dict)

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

    def end(self, check: str, connector: str, *, passed: bool) -> None:
        """Note how a check ended; one that failed gets a row of its own, whatever it had observed before."""
        self.passed[check] = connector, passed
        if not passed:
            self.add(check, connector, _FAILED)

    def table(self) -> str:
        """Return the Markdown table: each connector's answer beside the plain engine's."""
        checks = list(dict.fromkeys(row.check for row in self.rows))
        lines = [f"| check ({self.engine} {self.version}) | stock | plain | guarded | plain |", "|---|---|---|---|---|"]
        for check in checks:
            cells = []
            for connector in ("stock", "guarded"):
                found = [row for row in self.rows if row.check == check and row.connector == connector]
                cells.append("; ".join(dict.fromkeys(map(_cell, found))) or "-")
                cells.append("; ".join(dict.fromkeys(_start(row.plain) for row in found)) or "-")
            lines.append(f"| {check} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def last_line(self) -> str:
        """Return the line that sums the table up."""
        simulated = self.engine == _SIMULATOR
        where = f"the simulator of vLLM {self.version}" if simulated else f"real vLLM {self.version} pods"
        stock = {row.check for row in self.rows if row.connector == "stock" and row.answer in _NOT_AS_PLAIN}
        guarded = [passed for connector, passed in self.passed.values() if connector == "guarded"]
        failed = sum(not passed for _, passed in self.passed.values())
        return (
            f"{'conformance' if simulated else 'e2e-vllm'}: {len(self.passed)} checks on {where}, "
            f"stock wrong or failing {len(stock)}, guarded right {sum(guarded)} of {len(guarded)}"
            + (f", {failed} checks FAILED" if failed else "")
        )

    def write(self, out: Path) -> None:
        """Write `out`.json, a row on each line, and `out`.md."""
        out.parent.mkdir(parents=True, exist_ok=True)
        head = json.dumps({"engine": self.engine, "version": self.version, "summary": self.last_line()})
        rows = ",\n".join(json.dumps(asdict(row)) for row in self.rows)
        out.with_name(f"{out.name}.json").write_text(f'{head[:-1]}, "rows": [\n{rows}\n]}}\n')
        out.with_name(f"{out.name}.md").write_text(f"{self.table()}\n{self.last_line()}\n")


def read_rows(path: Path) -> list[Row]:
    """Return the rows that `write` left as JSON."""
    rows = json.loads(path.read_text())["rows"]
    return [Row(**{**row, "tokens": tuple(row["tokens"]), "plain": tuple(row["plain"])}) for row in rows]


def _cell(row: Row) -> str:
    tokens = f": {_start(row.tokens)}" if row.tokens else ""
    pulled = "" if row.pulled is None else f", {row.pulled} pulled"
    return f"{row.answer}{tokens}{pulled}" + (f" ({row.note})" if row.note else "")


def _start(tokens: Iterable[int]) -> str:
    """Return the first tokens of an answer, enough to tell two apart."""
    words = list(map(str, tokens))
    return " ".join(words[:_SHOWN]) + (" …" if len(words) > _SHOWN else "")
