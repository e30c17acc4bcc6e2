"""What the demo found: the table people read, its last line, and the JSON that programs read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.conversation import Turn


@dataclass(frozen=True)
class Row:
    """One turn, with reuse on and off. Tokens are of the run with reuse on."""

    turn: int
    prompt_tokens: int
    pulled_tokens: int
    computed_tokens: int
    ttft_on_ms: float
    ttft_off_ms: float

    @property
    def local_tokens(self) -> int:
        """Return what prefill had in its own prefix cache."""
        return self.prompt_tokens - self.pulled_tokens - self.computed_tokens

    def as_json(self) -> dict[str, Any]:
        """Return the row as it stands in report.json."""
        return {
            "turn": self.turn,
            "promptTokens": self.prompt_tokens,
            "pulledTokens": self.pulled_tokens,
            "computedTokens": self.computed_tokens,
            "ttftOnMs": self.ttft_on_ms,
            "ttftOffMs": self.ttft_off_ms,
        }


def rows(on: Sequence[Turn], off: Sequence[Turn]) -> list[Row]:
    """Join the turns of both runs by number."""
    return [
        Row(
            turn=with_reuse.turn,
            prompt_tokens=with_reuse.prompt_tokens,
            pulled_tokens=with_reuse.pulled_tokens or 0,
            computed_tokens=with_reuse.computed_tokens or 0,
            ttft_on_ms=with_reuse.ttft_ms,
            ttft_off_ms=without.ttft_ms,
        )
        for with_reuse, without in zip(on, off, strict=True)
    ]


@dataclass(frozen=True)
class Report:
    """The demo's result. `turns` with prefill's prefix cache off (the published set-up), `cached` with it on."""

    engine: str
    cluster: str
    turns: list[Row]
    cached: list[Row]
    identical: bool
    seconds: float

    def last_line(self) -> str:
        """Return the line that sums the main table up."""
        eligible = [row for row in self.turns if row.turn > 1]
        reused = [row for row in eligible if row.pulled_tokens > 0]
        saved = sum(row.pulled_tokens for row in reused)
        answers = "identical" if self.identical else "DIFFERENT"
        return (
            f"reuse: {len(reused)} of {len(eligible)} eligible turns, {saved} tokens not recomputed, answers {answers}"
        )

    def write(self, path: Path) -> None:
        """Write report.json."""
        path.parent.mkdir(parents=True, exist_ok=True)
        body = asdict(self) | {
            "turns": [row.as_json() for row in self.turns],
            "cached": [row.as_json() for row in self.cached],
        }
        path.write_text(json.dumps(body, indent=1) + "\n")


def print_table(console: Console, title: str, found: Sequence[Row]) -> None:
    """Print one table of turns."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in (
        "turn",
        "prompt tokens",
        "pulled D→P",
        "P's own cache",
        "computed",
        "TTFT reuse on",
        "TTFT reuse off",
        "on / off",
    ):
        table.add_column(heading, justify="right")
    for row in found:
        table.add_row(
            str(row.turn),
            f"{row.prompt_tokens:,}",
            f"{row.pulled_tokens:,}",
            f"{row.local_tokens:,}",
            f"{row.computed_tokens:,}",
            f"{row.ttft_on_ms:,.0f} ms",
            f"{row.ttft_off_ms:,.0f} ms",
            f"{row.ttft_on_ms / row.ttft_off_ms:.2f}" if row.ttft_off_ms else "-",
        )
    console.print(table)
