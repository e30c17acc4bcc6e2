"""Copy this package into a folder that an engine has on its PYTHONPATH: what the init container of engine pods runs."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def install(target: Path) -> Path:
    """Copy the package below `target`, which must be a folder, and return where it lies.

    Replaces what an earlier run left, so that a restarted init container succeeds. Leaves compiled files out: the
    engine's Python may be another release. Raises OSError where the folder is missing or cannot be written.
    """
    if not target.is_dir():
        raise NotADirectoryError(f"{target} is not a folder; mount the volume that the engine shares there")
    place = target / _PACKAGE.name
    if place.exists():
        shutil.rmtree(place)
    shutil.copytree(_PACKAGE, place, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="duplex-connector-install", description=__doc__)
    parser.add_argument("target", type=Path, help="folder on the engine's PYTHONPATH")
    target: Path = parser.parse_args(arguments).target
    try:
        place = install(target)
    except OSError as error:
        sys.stderr.write(f"duplex-connector-install: {error}\n")
        return 1
    sys.stdout.write(f"duplex-connector-install: {place}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
