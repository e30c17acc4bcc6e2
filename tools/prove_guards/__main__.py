"""`make prove-guards`: take each guard out of a copy of the source and see that its test fails.

First all named tests must pass on the copy as it is. Exit status 1 where a guard could be taken out unnoticed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from .mutation import Mutation
from .table import MUTATIONS
from .trees import compiled_scanner, copy_sources, run_tests

SHOWN_LINES = 25


@dataclass(frozen=True)
class Verdict:
    """Whether a guard's test noticed that the guard was gone; `why` where it did not."""

    mutation: Mutation
    caught: bool
    why: str = ""


def prove(mutation: Mutation, tree: Path) -> Verdict:
    """Run a mutation's test on a copy without the guard, and put the copy back in order."""
    before = mutation.apply(tree)
    try:
        with compiled_scanner(tree) if mutation.compiled else contextlib.nullcontext():
            result = run_tests(tree, [mutation.test])
    finally:
        (tree / mutation.file).write_text(before)
    if result.broken:
        return Verdict(mutation, caught=False, why=f"the test did not run to an end:\n{_last(result.output)}")
    return Verdict(mutation, caught=result.failed > 0, why="" if result.failed else "the test passes without the guard")


def _last(output: str) -> str:
    return "\n".join(output.splitlines()[-SHOWN_LINES:])


def prove_all(mutations: Sequence[Mutation], folder: Path, jobs: int) -> list[Verdict]:
    """Prove every mutation, `jobs` at a time, each in a copy of its own; return the verdicts in the table's order."""
    trees: SimpleQueue[Path] = SimpleQueue()
    for number in range(jobs):
        trees.put(copy_sources(folder / str(number)))

    def one(mutation: Mutation) -> Verdict:
        tree = trees.get()
        try:
            return prove(mutation, tree)
        finally:
            trees.put(tree)

    with ThreadPoolExecutor(jobs) as pool:
        verdicts = []
        for verdict in pool.map(one, mutations):
            print_row(verdict)
            verdicts.append(verdict)
    return verdicts


def print_row(verdict: Verdict) -> None:
    """Print one row of the table."""
    mutation, name = verdict.mutation, verdict.mutation.test.rpartition("::")[2]
    print(f"{mutation.guard:<26} | {mutation.how:<52} | {name:<80} | {'yes' if verdict.caught else 'NO'}", flush=True)


def unmutated(mutations: Sequence[Mutation], folder: Path) -> str:
    """Return why the tests do not all pass on the source as it is; empty where they do."""
    tree = copy_sources(folder / "unmutated")
    for compiled in (False, True):
        tests = list(dict.fromkeys(mutation.test for mutation in mutations if mutation.compiled is compiled))
        if not tests:
            continue
        with compiled_scanner(tree) if compiled else contextlib.nullcontext():
            result = run_tests(tree, tests)
        if result.broken or result.failed:
            return _last(result.output)
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="prove-guards", description=__doc__)
    parser.add_argument("--only", default="", help="only guards whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time (default 2)")
    options = parser.parse_args(arguments)
    chosen = [mutation for mutation in MUTATIONS if options.only in mutation.guard]
    if not chosen:
        names = sorted({mutation.guard for mutation in MUTATIONS})
        parser.error(f"no guard's name contains {options.only!r}; there are: {', '.join(names)}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="prove-guards-") as name:
        wrong = unmutated(chosen, Path(name))
        if wrong:
            print(f"The tests do not pass on the source as it is, so they prove nothing:\n{wrong}")
            return 1
        print(f"{'guard':<26} | {'mutation':<52} | {'test':<80} | caught")
        verdicts = prove_all(chosen, Path(name), options.jobs)
    survivors = [verdict for verdict in verdicts if not verdict.caught]
    for verdict in survivors:
        print(f"\n{verdict.mutation.guard} ({verdict.mutation.how}): {verdict.why}")
    guards = len({mutation.guard for mutation in chosen})
    caught = len(verdicts) - len(survivors)
    print(f"\n{guards} guards, {caught} of {len(verdicts)} mutations caught, {time.monotonic() - began:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
