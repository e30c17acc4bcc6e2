"""Where the lab keeps what it builds and runs: one cache folder, and nothing outside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[4]
"""The checkout this package runs from: images and Go sources are built from it."""


def cache_folder() -> Path:
    """Return the folder for everything that outlives one run: $DUPLEX_CACHE, else duplex in the user's cache folder."""
    chosen = os.environ.get("DUPLEX_CACHE")
    if chosen:
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "duplex"


def labs_folder() -> Path:
    """Return the folder that holds one folder per lab."""
    return cache_folder() / "labs"
