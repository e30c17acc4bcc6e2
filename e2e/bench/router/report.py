"""From raw rows to figures: medians over the rounds, ratios to nginx's two hops, a plot, and the last line."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .measure import Row
from .scenarios import SCENARIOS

RATE: Final = ("a", "a2", "e1", "e2", "cs", "cl")
LOW_LOAD: Final = ("c", "cs", "cl")


@dataclass(frozen=True)
class Figures:
    """What the rows say. Costs in microseconds of CPU per turn or event, added times in microseconds at the median."""

    rows: Sequence[Row]

    def _median(self, subject: str, scenario: str, field: str, hop: str = "") -> float | None:
        values = [
            float(row[field])
            for row in self.rows
            if (row["subject"], row["scenario"]) == (subject, scenario)
            and hop in ("", row.get("hop", ""))
            and field in row
        ]
        return statistics.median(values) if values else None

    def cost(self, subject: str, scenario: str) -> float | None:
        """Return the CPU time of a turn (of an event, where streams are counted by event); nginx: of both its hops."""
        if subject != "nginx":
            return self._median(subject, scenario, "cpuMicroseconds")
        decode = self._median(subject, scenario, "cpuMicroseconds", "decode")
        prefill = self._median(subject, scenario, "cpuMicroseconds", "prefill")
        return None if decode is None else decode + (prefill or 0.0)

    def added(self, subject: str, scenario: str) -> float | None:
        """Return the time to the first byte beyond what both engines need when asked directly."""
        direct = [self._median("direct", scenario, "ttftP50", hop) for hop in ("decode", "prefill")]
        hops = ("decode", "prefill") if subject == "nginx" else ("both",)
        taken = [self._median(subject, scenario, "ttftP50", hop) for hop in hops]
        if None in direct or None in taken:
            return None
        return sum(each or 0.0 for each in taken) - sum(each or 0.0 for each in direct)

    def rate_ratio(self, scenario: str, other: str = "nginx") -> float | None:
        """Return how many turns a core does, as a multiple of another's."""
        ours, theirs = self.cost("duplex", scenario), self.cost(other, scenario)
        return theirs / ours if ours and theirs else None

    def added_ratio(self, scenario: str) -> float | None:
        """Return the added time to the first byte as a multiple of nginx's."""
        ours, theirs = self.added("duplex", scenario), self.added("nginx", scenario)
        return ours / theirs if ours is not None and theirs else None

    def chunk_ratio(self) -> float | None:
        """Return the cost of a relayed chunk as a multiple of nginx's."""
        ratio = self.rate_ratio("b3")
        return 1 / ratio if ratio else None

    def peer_ratio(self, peer: str) -> float | None:
        """Return how many times as many short turns a core does as with a peer: the smaller of both scenarios."""
        found = [ratio for name in ("a", "a2") if (ratio := self.rate_ratio(name, peer)) is not None]
        return min(found) if found else None

    def summary(self) -> dict[str, Any]:
        """Return all figures."""
        names = [scenario.name for scenario in SCENARIOS]
        subjects = list(dict.fromkeys(row["subject"] for row in self.rows if row["subject"] != "direct"))
        costs = {subject: {name: _rounded(self.cost(subject, name)) for name in names} for subject in subjects}
        added = {subject: {name: _rounded(self.added(subject, name)) for name in LOW_LOAD} for subject in subjects}
        return {
            "cpuMicroseconds": costs,
            "addedMicroseconds": added,
            "rateOfNginx": {name: _rounded(self.rate_ratio(name), 3) for name in RATE},
            "addedOfNginx": {name: _rounded(self.added_ratio(name), 3) for name in LOW_LOAD},
            "chunkOfNginx": _rounded(self.chunk_ratio(), 3),
            "timesVllmRouter": _rounded(self.peer_ratio("vllm-router"), 2),
            "timesVllmExample": _rounded(self.peer_ratio("vllm-example"), 1),
        }

    def last_line(self) -> str:
        """Return the line that says how it went."""
        rates = {name: _shown(self.rate_ratio(name), ".2f") for name in ("a", "a2", "e1", "e2")}
        return (
            f"router: a {rates['a']} a2 {rates['a2']} chunk {_shown(self.chunk_ratio(), '.2f')} "
            f"ttft {_shown(self.added_ratio('c'), '.2f')} e1 {rates['e1']} e2 {rates['e2']} of nginx; "
            f"{_shown(self.peer_ratio('vllm-router'), '.1f')} x vllm-router; "
            f"{_shown(self.peer_ratio('vllm-example'), '.0f')} x vLLM example"
        )


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def table(figures: Figures) -> str:
    """Return the figures for reading."""
    summary = figures.summary()
    lines = ["CPU in microseconds per turn, or per event in b2 and b3; nginx: its two hops added up"]
    names = [scenario.name for scenario in SCENARIOS]
    lines.append(f"{'':14}" + "".join(f"{name:>10}" for name in names))
    for subject, costs in summary["cpuMicroseconds"].items():
        lines.append(f"{subject:14}" + "".join(f"{_shown(costs[name], '.1f'):>10}" for name in names))
    lines.append("microseconds added to the time to the first byte")
    for subject, added in summary["addedMicroseconds"].items():
        lines.append(f"{subject:14}" + "".join(f"{name:>6} {_shown(added[name], '.0f'):>6}" for name in LOW_LOAD))
    for row in figures.rows:
        if row["scenario"] == "d":
            lines.append(
                f"{row['subject']}: {row['kilobytesPerStream']} kB per idle stream, "
                f"{row['abortsPassedOn']} of {row['streams']} aborts passed on"
            )
        if row["scenario"] == "leak":
            lines.append(
                f"{row['done']} turns: memory {row['memoryKilobytes'][0]} -> {row['memoryKilobytes'][1]} kB, "
                f"{row['engines']['held']} holds made, {row['heldAtTheEnd']} never released; {row['lapsed']} lapsed"
            )
    return "\n".join(lines)


def plot(figures: Figures, path: Path) -> None:
    """Draw what a turn and a chunk cost, beside nginx and the peers."""
    import matplotlib as mpl  # noqa: PLC0415 - takes a second, and only a whole run draws

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of what draws

    costs = figures.summary()["cpuMicroseconds"]
    panels = (
        ("turns a second of one core", ("a", "a2"), 1e6),
        ("200 kB and 2 MB histories", ("e1", "e2"), 1e6),
        ("thousand chunks a second of one core", ("b2", "b3"), 1e3),
    )
    names = {
        "nginx": "nginx, two hops, no reuse",
        "duplex": "duplex-router",
        "vllm-router": "vllm-router",
        "vllm-example": "vLLM's example",
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(12, 4), layout="constrained")
    shown = [subject for subject in names if subject in costs]
    for axis, (title, scenarios, scale) in zip(axes, panels, strict=True):
        for at, subject in enumerate(shown):
            values = [scale / costs[subject][name] if costs[subject][name] else 0 for name in scenarios]
            places = [place + (at - len(shown) / 2 + 0.5) * 0.2 for place in range(len(scenarios))]
            bars = axis.bar(places, values, width=0.19, label=names[subject])
            axis.bar_label(bars, [f"{value:,.0f}" if value else "-" for value in values], fontsize=7)
        axis.set_xticks(range(len(scenarios)), scenarios)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=150)
