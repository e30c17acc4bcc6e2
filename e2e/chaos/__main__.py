"""`make chaos-router`: seeded load on routers while engines and the store are killed, frozen, cut off and restarted.

Exit status 1 on any violation: a wrong answer, a handle that reaches a client, an answer that failed without a fault
of its engine after the first byte, a hold that nobody frees, growing memory.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .account import MOST_SHOWN, write_report
from .phase import PLANS, Phase


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of load, all phases together")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time; it is printed")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only phases whose name has it; the time stays theirs"
    )
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--engines", type=int, default=3, help="of each role")
    parser.add_argument("--time-scale", type=float, default=0.5, help="of the simulated model's times")
    parser.add_argument(
        "--leg-seconds", type=float, default=10.0, help="the routers' deadlines; longer on slow machines"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"), help="logs and report.json")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**6)
    return options


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the phases; return the report."""
    phases: dict[str, Any] = {}
    violations: list[str] = []
    for plan in PLANS:
        if options.only in plan.name:
            phase = Phase(options, plan)
            await phase.run()
            phases[plan.name] = phase.report
            violations += [f"{plan.name}: {each}" for each in phase.account.violations]
    return {"seed": options.seed, "seconds": options.seconds, "phases": phases, "violations": violations}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = parse_arguments(arguments)
    print(f"seed {options.seed}, {options.seconds:.0f} s of load", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended in either case
    report = asyncio.run(run(options))
    write_report(options.folder / "report.json", report)
    for name, phase in report["phases"].items():
        print(
            f"{name}: {phase['turns']} turns {phase['outcomes']}, faults {phase['faults']}, reuse {phase['reuse']}, "
            f"held tokens {phase['heldTokensAfterRelease']} after release, {phase['heldTokensAtTheEnd']} at the end, "
            f"legs {phase['legSeconds']} s, kB {phase['routerKilobytes']}, "
            f"kB in 1,000 turns {phase['routerKilobytesPerThousandTurns']}"
        )
    for violation in report["violations"][:MOST_SHOWN]:
        print(f"VIOLATION {violation}")
    turns = sum(phase["turns"] for phase in report["phases"].values())
    kills = sum(phase["kills"] for phase in report["phases"].values())
    print(f"chaos: {turns} turns, {kills} kills, {len(report['violations'])} violations, seed {options.seed}")
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
