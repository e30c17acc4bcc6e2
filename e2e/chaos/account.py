"""What is counted, what counts as a violation, and the report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_SHOWN = 20
WARM_UP_SHARE = 0.5
LEAST_TURNS = 150
MOST_KILOBYTES = 1024.0
"""For each 1,000 turns. A turn that is not let go keeps its body, its history and its answer: several kB. What may grow
meanwhile is bounded: fates of entries (some 200 B a turn), and pages that the allocator has not filled again."""


@dataclass
class Account:
    """Turns by how they ended, breaks with the fault that explains each, and violations in words."""

    turns: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)
    reuse: Counter[str] = field(default_factory=Counter)
    breaks: list[dict[str, Any]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def violated(self, what: str) -> None:
        """Note a violation."""
        self.violations.append(what)

    @property
    def total(self) -> int:
        """All turns, those of clients that left included."""
        return sum(self.turns.values())


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Return the slope of a least-squares line through (x, y) samples; 0 where it has none."""
    count = len(samples)
    if count < 2:  # noqa: PLR2004 - a line needs two points
        return 0.0
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0


def memory_slope(samples: Sequence[tuple[int, int]]) -> float:
    """Return by how many kB in 1,000 turns a router grew after its warm-up; samples are (turns, kB)."""
    after = samples[round(len(samples) * WARM_UP_SHARE) :]
    return 1000.0 * slope([(float(turns), float(size)) for turns, size in after])


def check_memory(account: Account, router: str, samples: Sequence[tuple[int, int]]) -> float:
    """Return a router's slope in kB per 1,000 turns; where there were enough to tell, growth is a violation."""
    found = memory_slope(samples)
    turns = samples[-1][0] - samples[round(len(samples) * WARM_UP_SHARE)][0] if len(samples) > 1 else 0
    if turns >= LEAST_TURNS and found > MOST_KILOBYTES:
        account.violated(f"the memory of {router} grows by {found:.0f} kB in 1,000 turns")
    return found


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write the report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
