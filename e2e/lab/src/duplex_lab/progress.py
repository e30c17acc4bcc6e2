"""Progress of slow steps: one line each, with the seconds since the start."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO


@dataclass
class Progress:
    """Prints `[  12.3 s] text` lines to standard error, so that standard output stays for results."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def say(self, text: str) -> None:
        """Print one line now."""
        print(f"[{self.clock() - self.started:6.1f} s] {text}", file=self.stream, flush=True)
