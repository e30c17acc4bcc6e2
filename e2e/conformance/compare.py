"""Compare what two kinds of engines answered to the same checks: the simulator is worth what this shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from .report import Row

KNOWN: Final[Mapping[tuple[str, str], str]] = {
    ("decode leg 30 s after the prefill leg", "stock"): (
        "a late read: right on real vLLM for as long as nobody has taken the freed blocks, scrap in the simulator, "
        "so that luck hides nothing"
    ),
    ("release by a rejected request, never met", "stock"): (
        "an idle real prefill engine sends the notice with its next step, the simulator when they have shaken hands"
    ),
}
"""(check, connector) of each difference that is meant, and why it is."""


@dataclass(frozen=True)
class Difference:
    """A check that ended otherwise; `reason` is empty where nobody knows why."""

    check: str
    connector: str
    first: str
    second: str
    reason: str


def differences(first: Iterable[Row], second: Iterable[Row]) -> list[Difference]:
    """Return the differences in answers and pulled tokens, with checks that only one side has; notes do not count."""
    seen, other = _outcomes(first), _outcomes(second)
    return [
        Difference(*key, seen.get(key, "not run"), other.get(key, "not run"), KNOWN.get(key, ""))
        for key in dict.fromkeys([*seen, *other])
        if seen.get(key) != other.get(key)
    ]


def _outcomes(rows: Iterable[Row]) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        pulled = "" if row.pulled is None else f", {row.pulled} pulled"
        found.setdefault((row.check, row.connector), []).append(f"{row.answer}{pulled}")
    return {key: "; ".join(dict.fromkeys(outcomes)) for key, outcomes in found.items()}


def table(found: Iterable[Difference], first: str, second: str) -> str:
    """Return the differences as a Markdown table."""
    lines = [f"| check | engines | {first} | {second} | reason |", "|---|---|---|---|---|"]
    lines += [
        f"| {each.check} | {each.connector} | {each.first} | {each.second} | {each.reason or 'UNKNOWN'} |"
        for each in found
    ]
    return "\n".join(lines) + "\n"
