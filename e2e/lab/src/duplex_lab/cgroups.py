"""The cgroups that a node's pods live in: one group per node, in every v1 hierarchy or in the one of v2.

See cgroups(7) and the kernel's admin-guide/cgroup-v2. The v1 side is exercised by the lab's own tests; the v2 side
follows the documentation and has not been run by its authors, whose machines have v1.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from duplex_lab import plan
from duplex_lab.errors import LabError
from duplex_lab.processes import wait_until

ROOT: Final = Path("/sys/fs/cgroup")
_V2_CONTROLLERS: Final = ("cpu", "cpuset", "io", "memory", "pids")
_REMOVE_SECONDS: Final = 15.0


class Cgroups:
    """The machine's cgroup hierarchies below `root`."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self.unified = (root / "cgroup.controllers").exists()

    def hierarchies(self) -> list[Path]:
        """Return the folder of each hierarchy: one with v2, one per controller (and systemd's) with v1."""
        if self.unified:
            return [self._root]
        folders = [] if not self._root.exists() else sorted(self._root.iterdir())
        # Links such as cpu,cpuacct are second names of a hierarchy.
        return [each for each in folders if not each.is_symlink() and (each / "cgroup.procs").exists()]

    def create(self, name: str) -> None:
        """Make the group `name` in every hierarchy, ready for kubelet to make the pods' groups below."""
        if not self.hierarchies():
            raise LabError(f"no cgroup hierarchy is mounted below {self._root}: kubelet cannot run pods here")
        if self.unified:
            self._delegate()
        for hierarchy in self.hierarchies():
            group = hierarchy / name
            try:
                group.mkdir(exist_ok=True)
            except OSError as error:
                raise LabError(f"cannot make {group} ({error.strerror}): in a container, run it privileged") from error
            if not self.unified and hierarchy.name.startswith("cpuset"):
                # A new v1 cpuset is empty, and no process may enter it until it has CPUs and memory nodes.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (group / file).write_text((hierarchy / file).read_text())

    def remove(self, lab: str) -> None:
        """Remove every group of this lab with all groups below; LabError names one that processes still keep."""
        for hierarchy in self.hierarchies():
            for group in hierarchy.iterdir():
                if plan.cgroup_belongs_to(lab, group.name) and not wait_until(lambda: _removed(group), _REMOVE_SECONDS):  # noqa: B023 - called before the next turn
                    raise LabError(f"{group} cannot be removed; processes in it: {sorted(_members(group))}")

    def left(self, lab: str) -> list[Path]:
        """Return the groups of this lab that exist."""
        return [
            group
            for hierarchy in self.hierarchies()
            for group in hierarchy.iterdir()
            if plan.cgroup_belongs_to(lab, group.name)
        ]

    def _delegate(self) -> None:
        """Let groups below the root use the controllers that kubelet needs (v2: cgroup.subtree_control)."""
        available = set((self._root / "cgroup.controllers").read_text().split())
        missing = {"cpu", "memory", "pids"} - available
        if missing:
            raise LabError(f"cgroup v2 here lacks the controllers {sorted(missing)}, which kubelet needs")
        words = " ".join(f"+{controller}" for controller in _V2_CONTROLLERS if controller in available)
        control = self._root / "cgroup.subtree_control"
        try:
            control.write_text(words)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # Inside a container our root is an inner group of the host's, and only an empty inner group may delegate:
            # its processes move to a leaf, which is what container-in-container images do at their start.
            leaf = self._root / "init"
            leaf.mkdir(exist_ok=True)
            for pid in (self._root / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (leaf / "cgroup.procs").write_text(pid)
            control.write_text(words)


def _groups_below(group: Path) -> Iterator[Path]:
    """Yield a group and those below, innermost first: the order in which they can be removed."""
    for folder, _, _ in os.walk(group, topdown=False):
        yield Path(folder)


def _removed(group: Path) -> bool:
    for each in _groups_below(group):
        with contextlib.suppress(OSError):  # busy while its last processes end: tried again
            each.rmdir()
    return not group.exists()


def _members(group: Path) -> set[str]:
    members: set[str] = set()
    for each in _groups_below(group):
        with contextlib.suppress(OSError):
            members.update((each / "cgroup.procs").read_text().split())
    return members
