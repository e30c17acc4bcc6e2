"""`python -m conformance --engine simulator|vllm [--short]`: run the suite and print its table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import pytest

_HERE: Final = Path(__file__).parent
_BUILD: Final = _HERE.parents[1] / "build" / "conformance"
_SHORT: Final = "continuation_reuses and not per-role"
"""The scenario for a first look: one continuation on a stock and on a guarded pair."""


def main() -> int:
    """Return pytest's status."""
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("--engine", choices=("simulator", "vllm"), default="simulator")
    parser.add_argument("--short", action="store_true", help="one scenario only")
    parser.add_argument("rest", nargs="*", help="further arguments of pytest, after --")
    known = parser.parse_args()
    arguments = [str(_HERE), "--engine", known.engine, "-q", "--timeout", "1800", *known.rest]
    if known.short:
        arguments += ["-k", _SHORT]
    status = int(pytest.main(arguments))
    table = _BUILD / f"{known.engine}.md"
    if table.exists():
        print(table.read_text())
    return status


sys.exit(main())
