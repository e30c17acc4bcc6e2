"""What is counted, what counts as a violation, and the report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_SHOWN = 20
WARM_UP_SHARE = 0.3
STEADY_SECONDS = 240.0
MOST_KILOBYTES_PER_MINUTE = 1024.0


@dataclass
class Account:
    """Turns by how they ended, breaks with the fault that explains each, and violations in words."""

    turns: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)
    reuse: Counter[str] = field(default_factory=Counter)
    breaks: list[dict[str, Any]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)

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


def memory_slope(samples: Sequence[tuple[float, int]]) -> float:
    """Return by how many kB a minute the router grew after its warm-up."""
    after = samples[round(len(samples) * WARM_UP_SHARE) :]
    return 60.0 * slope([(seconds, float(size)) for seconds, size in after])


def check_memory(account: Account) -> float:
    """Return the slope in kB a minute; where the run was long enough to tell, growth is a violation."""
    found = memory_slope(account.memory)
    lasted = account.memory[-1][0] - account.memory[0][0] if account.memory else 0.0
    if lasted * (1 - WARM_UP_SHARE) >= STEADY_SECONDS and found > MOST_KILOBYTES_PER_MINUTE:
        account.violated(f"the router's memory grows by {found:.0f} kB a minute")
    return found


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write the report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
