"""Copies of the repository's sources, and tests run against such a copy."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = ("connector/src", "router/src", "simulator/src", "operator/src", "e2e/lab/src", "e2e", "tools")
SCANNER_FOLDER = "router/src/duplex_router/wire"
TEST_SECONDS = 600.0


def copy_sources(to: Path) -> Path:
    """Copy what git knows of, and what it does not ignore, to a new folder; return it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, to / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return to


@dataclass(frozen=True)
class Result:
    """How the tests of one run ended. `broken`: one ended by an error outside its assertions, or did not run at all."""

    passed: int
    failed: int
    broken: bool
    output: str


@contextlib.contextmanager
def compiled_scanner(tree: Path) -> Iterator[None]:
    """Have a copy's router use its scanner, compiled from the copy. Raises CalledProcessError without a compiler."""
    command = [sys.executable, str(tree / "router/native.py"), "--scanner", str(tree / SCANNER_FOLDER)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True)
    try:
        yield
    finally:
        for path in (tree / SCANNER_FOLDER).glob("*.so"):
            path.unlink()


def run_tests(tree: Path, tests: Sequence[str]) -> Result:
    """Run tests of a copy against the sources of that copy, in one pytest process."""
    report = tree / "prove-guards.xml"
    report.unlink(missing_ok=True)
    env = {
        **os.environ,
        # Before the sources that are installed in the virtual environment, also in processes that tests start.
        "PYTHONPATH": os.pathsep.join(str(tree / folder) for folder in SOURCE_FOLDERS),
        # A mutation and its source may agree in size and second: a compiled file would be taken for the other.
        "PYTHONDONTWRITEBYTECODE": "1",
        # Hypothesis then knows no deadline of its own, and tries the same examples each time.
        "CI": "true",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
    try:
        run = subprocess.run(
            command, cwd=tree, env=env, check=False, capture_output=True, text=True, timeout=TEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Result(0, 0, broken=True, output=f"no end within {TEST_SECONDS:.0f} s")
    output = run.stdout + run.stderr
    if not report.exists():
        return Result(0, 0, broken=True, output=output)
    suite = next(iter(ET.parse(report).getroot().iter("testsuite")))  # noqa: S314 - written by pytest a moment ago
    counts = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    broken = counts["errors"] > 0 or counts["skipped"] > 0 or counts["tests"] == 0
    return Result(passed, counts["failures"], broken, output)
