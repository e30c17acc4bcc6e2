"""`python -m conformance`: run the suite on an engine and print its table, or compare two runs."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Final

import pytest

from .compare import differences, table
from .report import read_rows

_HERE: Final = Path(__file__).parent
_BUILD: Final = _HERE.parents[1] / "build" / "conformance"
_RECORDS: Final = _HERE.parents[1] / "docs" / "benchmarks"
_SHORT: Final = "a_continuation_reuses_everything and not per-role"
"""The scenario for a first look: one continuation on a stock and on a guarded pair."""
_LONGEST_SECONDS: Final = 3600


def main() -> int:
    """Return pytest's status, or of a comparison whether every difference has a reason."""
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("--engine", choices=("simulator", "vllm"), default="simulator")
    parser.add_argument("--short", action="store_true", help="one scenario only")
    parser.add_argument("--record", action="store_true", help="keep the whole run's table in docs/benchmarks")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="JSON", help="compare what two runs left")
    parser.add_argument("rest", nargs="*", help="further arguments of pytest, after --")
    known = parser.parse_args()
    if known.compare:
        return _compare(*known.compare)
    if known.record and (known.short or known.rest):
        parser.error("only a whole run is recorded")
    return _run(known)


def _run(known: argparse.Namespace) -> int:
    # However a run is interrupted, its engines and their lab go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    name = known.engine + ("-overlay" if os.environ.get("DUPLEX_ENGINE_OVERLAY") == "1" else "")
    out = _RECORDS / f"conformance-{name}" if known.record else _BUILD / name
    arguments = [str(_HERE), "--engine", known.engine, "--out", str(out), "-q", "--timeout", str(_LONGEST_SECONDS)]
    arguments.append("--capture=sys")  # what is written past sys.stderr shows how far a long run is
    arguments += ["-k", _SHORT] if known.short else []
    shown = out.with_name(f"{out.name}.md")
    shown.unlink(missing_ok=True)
    status = int(pytest.main([*arguments, *known.rest]))
    if shown.exists():  # not where nothing could be started
        print(shown.read_text())
    return status


def _compare(first: Path, second: Path) -> int:
    found = differences(read_rows(first), read_rows(second))
    unknown = [each for each in found if not each.reason]
    print(table(found, first.stem, second.stem))
    print(f"{len(found)} differences, {len(unknown)} of them without a known reason")
    return 1 if unknown else 0


sys.exit(main())
