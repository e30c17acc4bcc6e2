"""A mutation: how one guard is taken out, and which test must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class AnchorError(Exception):
    """The source fragment of a mutation is not, or not only once, in its file: the table must follow the source."""


@dataclass(frozen=True)
class Mutation:
    """`guard` names what is taken out, `how` says in a few words how; `test` is a pytest node id without parameters.

    `compiled`: the test runs with the router's scanner compiled from the copy, as it may be or not be in use.
    `file`, relative to the repository, contains `source` exactly once; `replacement` stands there instead.
    """

    guard: str
    how: str
    file: str
    source: str
    replacement: str
    test: str
    compiled: bool = False

    def applied_to(self, text: str) -> str:
        """Return the file's text without the guard. Raises AnchorError."""
        found = text.count(self.source)
        if found != 1:
            raise AnchorError(f"{self.guard} ({self.how}): its fragment is {found} times in {self.file}, not once")
        if self.source == self.replacement:
            raise AnchorError(f"{self.guard} ({self.how}): it changes nothing")
        return text.replace(self.source, self.replacement)

    def apply(self, tree: Path) -> str:
        """Change the file in a copy of the repository; return its former text. Raises AnchorError."""
        path = tree / self.file
        before = path.read_text()
        path.write_text(self.applied_to(before))
        return before
