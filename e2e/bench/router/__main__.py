"""`python -m bench.router`: measure the router beside nginx, vllm-router and vLLM's example proxy."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Final

from duplex_lab.paths import REPOSITORY

from . import tools
from .machine import BenchError, description, enter_namespace
from .measure import Bench
from .report import Figures, plot, table
from .scenarios import QUICK, SCENARIOS
from .subjects import MAKERS

OUTPUT: Final = REPOSITORY / "docs" / "benchmarks"
ROUNDS: Final = 5


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.router", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of the main scenarios; nothing is written")
    parser.add_argument("--rounds", type=int, help=f"default: {ROUNDS}, or 1 with --quick")
    parser.add_argument("--scenarios", help="some of: " + ",".join(scenario.name for scenario in SCENARIOS))
    parser.add_argument("--subjects", default=",".join(MAKERS), help="default: %(default)s")
    return parser.parse_args(arguments)


def _obtain(subjects: list[str]) -> None:
    """Get all that is needed, while there still is a network."""
    tools.build("engines")
    tools.build("load")
    tools.nginx()
    if "duplex" in subjects:
        tools.router_python()
    if "vllm-router" in subjects:
        tools.vllm_router()
    if "vllm-example" in subjects:
        tools.vllm_example()


def main() -> int:
    """Run the command."""
    options = _options(sys.argv[1:])
    subjects = options.subjects.split(",")
    try:
        _obtain(subjects)
        enter_namespace("bench.router", sys.argv[1:])
        default = QUICK if options.quick else tuple(scenario.name for scenario in SCENARIOS)
        chosen = options.scenarios.split(",") if options.scenarios else default
        with tempfile.TemporaryDirectory(prefix="duplex-bench-") as folder:
            bench = Bench(Path(folder), lambda text: print(text, flush=True), chosen, subjects)
            whole = not options.quick and options.scenarios is None and len(subjects) == len(MAKERS)
            bench.run(options.rounds or (1 if options.quick else ROUNDS), leak=whole)
    except BenchError as error:
        print(f"bench-router: {error}", file=sys.stderr)
        return 1
    figures = Figures(bench.rows)
    if whole:
        OUTPUT.mkdir(parents=True, exist_ok=True)
        document = {
            "machine": description(),
            "versions": tools.versions(),
            "figures": figures.summary(),
            "rows": bench.rows,
        }
        (OUTPUT / "router.json").write_text(json.dumps(document, indent=1) + "\n")
        plot(figures, OUTPUT / "router.png")
    print(table(figures))
    print(figures.last_line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
