"""Golden files: DUPLEX_REFRESH_GOLDEN=1 writes them anew; what changed is then read in the diff before it is kept."""

from __future__ import annotations

import os
from pathlib import Path


def assert_golden(path: Path, text: str) -> None:
    """Fail where a golden file does not hold exactly this text."""
    if os.environ.get("DUPLEX_REFRESH_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.is_file(), f"{path} is missing: run the test with DUPLEX_REFRESH_GOLDEN=1 and read the file"
    assert text == path.read_text(), f"{path.name} differs: if that is meant, run with DUPLEX_REFRESH_GOLDEN=1"
