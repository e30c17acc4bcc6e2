"""Several conversations at once, in processes of their own, which go on while something is done to their serving."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from duplex_lab.cluster import Cluster

from .conversation import Script, Turn
from .talk import finish, start


@dataclass
class Crowd:
    """Conversations under way."""

    cluster: Cluster
    _talks: list[tuple[Script, subprocess.Popen[str]]] = field(default_factory=list)

    def add(self, script: Script) -> None:
        """Begin one more."""
        self._talks.append((script, start(self.cluster, script)))

    def listen(self, seconds: float) -> None:
        """Let them go on for a while."""
        time.sleep(seconds)

    def end(self, check: Callable[[list[Turn], Script], None]) -> list[list[Turn]]:
        """Let each finish its turn, and check what was said. Raises ConversationFailedError where a turn failed."""
        talks, self._talks = self._talks, []
        for _, process in talks:
            process.terminate()
        found = []
        for script, process in talks:
            turns = finish(process, script)
            check(turns, replace(script, turns=len(turns)))
            found.append(turns)
        return found

    def kill(self) -> None:
        """End those that are left, after a failure."""
        for _, process in self._talks:
            process.kill()
            process.wait()
