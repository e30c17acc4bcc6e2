"""What is counted, what counts as a violation, and the report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_SHOWN = 20
LEAST_TURNS = 200
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


@dataclass(frozen=True)
class Sample:
    """A router's resident memory after so many seconds and turns of load."""

    seconds: float
    turns: int
    kilobytes: int


def memory_slope(samples: Sequence[Sample]) -> float:
    """Return by how many kB in 1,000 turns a router grew."""
    return 1000.0 * slope([(float(each.turns), float(each.kilobytes)) for each in samples])


def check_memory(account: Account, router: str, samples: Sequence[Sample], warm_up: float) -> float | None:
    """Return a router's slope in kB per 1,000 turns after the warm-up; growth is a violation.

    `warm_up`: seconds after which as many holds end as begin. None: too few turns came after it to tell.
    """
    after = [each for each in samples if each.seconds >= warm_up]
    if not after or after[-1].turns - after[0].turns < LEAST_TURNS:
        return None
    found = memory_slope(after)
    if found > MOST_KILOBYTES:
        account.violated(f"the memory of {router} grows by {found:.0f} kB in 1,000 turns")
    return round(found, 1)


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write the report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
