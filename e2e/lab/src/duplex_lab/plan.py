"""Names and addresses of a lab: pure.

Every lab uses the same addresses: each has network namespaces of its own with no way out, so two labs never meet.
What is global on the machine, cgroups and the folder, bears the lab's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from duplex_lab.errors import LabError

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,22}[a-z0-9])?")
MAXIMUM_NODES: Final = 100


def checked_name(name: str) -> str:
    """Return the name if it can name a lab: it becomes a folder and part of cgroup names."""
    if not _NAME.fullmatch(name):
        raise LabError(f"lab name {name!r}: use 1 to 24 lower-case letters, digits and inner dashes")
    return name


@dataclass(frozen=True)
class NodePlan:
    """What is fixed about one node of a lab; nodes count from 1."""

    lab: str
    index: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= MAXIMUM_NODES:
            raise LabError(f"a lab has 1 to {MAXIMUM_NODES} nodes, not {self.index}")

    @property
    def name(self) -> str:
        """The node's name in Kubernetes and its host name."""
        return f"node{self.index}"

    @property
    def address(self) -> str:
        """The node's address in the lab's network, which is 10.200.0.0/24."""
        return f"10.200.0.{self.index + 1}"

    @property
    def pod_range(self) -> str:
        """The /24 of the node's pods, within the cluster's 10.244.0.0/16."""
        return f"10.244.{self.index}.0/24"

    @property
    def cgroup(self) -> str:
        """The name of the node's cgroup in every hierarchy."""
        return f"duplex-{self.lab}-{self.name}"


def cgroup_belongs_to(lab: str, cgroup: str) -> bool:
    """Say whether a cgroup is a node's of this lab, and not of another whose name begins alike."""
    return re.fullmatch(rf"duplex-{re.escape(lab)}-node\d+", cgroup) is not None
