"""`python -m bench.multi_turn`: TTFT over turns with reuse on and off, as vLLM's multi-turn benchmark measures it."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import matplotlib as mpl

from bench.router.machine import BenchError, description
from chaos.loopback import HOST
from chaos.oracle import MODEL
from chaos.site import Site
from duplex_connector.contract import ConnectorKind
from duplex_lab.paths import REPOSITORY
from duplex_lab.progress import Progress

from .client import Client

mpl.use("agg")
from matplotlib import pyplot as plt

OUTPUT: Final = REPOSITORY / "docs" / "benchmarks"
PROFILE: Final = ("--sim-profile", "qwen3-32b-p5en", "--sim-blocks", "65536")
CONVERSATIONS, TURNS, WORDS = 6, 8, 1500
LEG_SECONDS: Final = 120.0

Rows = list[dict[str, Any]]


async def measure(client: Client, folder: Path, *, reuse: bool) -> tuple[Rows, dict[str, Any]]:
    """Run the benchmark on a pair of simulated engines; return its rows, and what the router says of reuse."""
    site = Site(ConnectorKind.GUARDED, folder, PROFILE, LEG_SECONDS, policy={"bidirectional": reuse})
    async with aiohttp.ClientSession() as session:
        try:
            await site.start(session, each=1, routers=1)
            (router,) = site.routers
            url = f"http://{HOST}:{router.port}"
            rows = await asyncio.to_thread(client.run, url, MODEL, clients=1, active=2)
            async with session.get(f"http://{HOST}:{router.admin}/stats") as answer:
                told: dict[str, Any] = await answer.json()
                return rows, told["reuse"]
        finally:
            await site.close()


def by_turn(rows: Rows) -> dict[int, float]:
    """Return the median TTFT in ms of each turn, from 1."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for row in rows:
        found[(row["input_num_turns"] + 1) // 2].append(row["ttft_ms"])
    return {turn: statistics.median(times) for turn, times in sorted(found.items())}


def plot(medians: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Draw TTFT by turn."""
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name, values in medians.items():
        axes.plot(list(values), list(values.values()), marker="o", label=f"reuse {name}")
    axes.set(xlabel="turn", ylabel="median TTFT, ms", title="vLLM's multi-turn benchmark, simulated Qwen3-32B on P5en")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def table(medians: Mapping[str, Mapping[int, float]]) -> Sequence[str]:
    """Return the lines of a table."""
    on, off = medians["on"], medians["off"]
    lines = [f"{'turn':>4}  {'TTFT on':>9}  {'TTFT off':>9}  on / off"]
    return lines + [
        f"{turn:>4}  {on[turn]:>6.0f} ms  {off[turn]:>6.0f} ms  {on[turn] / off[turn]:>8.2f}" for turn in on
    ]


def main() -> int:
    """Run the command."""
    progress = Progress()
    rows: dict[str, Rows] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="duplex-bench-") as folder:
            client = Client(Path(folder), conversations=CONVERSATIONS, turns=TURNS, words=WORDS)
            for name, reuse in (("on", True), ("off", False)):
                progress.say(f"{CONVERSATIONS} conversations of {TURNS} turns with reuse {name}")
                rows[name], told = asyncio.run(measure(client, Path(folder) / name, reuse=reuse))
                if reuse:
                    reused = told
    except BenchError as error:
        print(f"bench-multi-turn: {error}", file=sys.stderr)
        return 1
    medians = {name: by_turn(each) for name, each in rows.items()}
    document = {"machine": description(), "reuse": reused, "medianTtftMs": medians, "rows": rows}
    (OUTPUT / "multi-turn.json").write_text(json.dumps(document, indent=1) + "\n")
    plot(medians, OUTPUT / "multi-turn.png")
    print("\n".join(table(medians)))
    last = medians["on"][TURNS] / medians["off"][TURNS]
    print(
        f"multi-turn: {len(rows['on'])} turns, {reused['full'] + reused['partial']} of {reused['eligible']} eligible "
        f"turns reused, TTFT at turn {TURNS} {last:.2f} of that without reuse"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
