"""Cgroups of nodes, on folders that look like both versions of the kernel's hierarchies."""

import errno
from pathlib import Path

import pytest

from duplex_lab.cgroups import Cgroups
from duplex_lab.errors import LabError


def hierarchy(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("1\n")
    return folder


@pytest.fixture
def version1(tmp_path: Path) -> Path:
    for name in ("memory", "unified"):
        hierarchy(tmp_path / name)
    cpuset = hierarchy(tmp_path / "cpuset")
    (cpuset / "cpuset.cpus").write_text("0-3\n")
    (cpuset / "cpuset.mems").write_text("0\n")
    (tmp_path / "cpu").symlink_to("memory")
    return tmp_path


@pytest.fixture
def version2(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.procs").write_text("1\n")
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    return tmp_path


def test_version_1_has_a_group_in_every_hierarchy_once(version1: Path) -> None:
    Cgroups(version1).create("duplex-a-node1")
    assert {folder.parent.name for folder in version1.glob("*/duplex-a-node1")} == {
        "memory",
        "unified",
        "cpuset",
        "cpu",
    }
    assert (version1 / "cpuset/duplex-a-node1/cpuset.cpus").read_text() == "0-3\n"
    assert (version1 / "cpuset/duplex-a-node1/cpuset.mems").read_text() == "0\n"


def test_removal_takes_this_labs_groups_with_all_below_and_no_others(version1: Path) -> None:
    groups = Cgroups(version1)
    for name in ("duplex-a-node1", "duplex-a-node12", "duplex-a-node1-node1", "duplex-ab-node1"):
        (version1 / "memory" / name / "kubepods" / "pod1").mkdir(parents=True)
    groups.remove("a")
    assert groups.left("a") == []
    left = sorted(folder.name for folder in (version1 / "memory").iterdir() if folder.is_dir())
    assert left == ["duplex-a-node1-node1", "duplex-ab-node1"]


def test_a_group_that_stays_is_named(version1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duplex_lab.cgroups._REMOVE_SECONDS", 0.1)
    group = hierarchy(version1 / "memory" / "duplex-a-node1")
    (group / "cgroup.procs").write_text("4711\n")
    with pytest.raises(LabError, match=r"memory/duplex-a-node1 .*4711"):
        Cgroups(version1).remove("a")


def test_version_2_delegates_what_kubelet_needs(version2: Path) -> None:
    Cgroups(version2).create("duplex-a-node1")
    assert (version2 / "duplex-a-node1").is_dir()
    assert set((version2 / "cgroup.subtree_control").read_text().split()) == {
        "+cpu",
        "+cpuset",
        "+io",
        "+memory",
        "+pids",
    }


def test_version_2_without_memory_is_refused(version2: Path) -> None:
    (version2 / "cgroup.controllers").write_text("cpu pids\n")
    with pytest.raises(LabError, match="memory"):
        Cgroups(version2).create("duplex-a-node1")


def test_version_2_in_a_container_moves_its_processes_to_a_leaf(
    version2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Path.write_text

    def write(path: Path, text: str) -> int:
        """Refuse as the kernel does: no controllers for the children of a group that has processes."""
        if path.name == "cgroup.subtree_control" and not (version2 / "init" / "cgroup.procs").exists():
            raise OSError(errno.EBUSY, "busy")
        return written(path, text)

    monkeypatch.setattr(Path, "write_text", write)
    Cgroups(version2).create("duplex-a-node1")
    assert (version2 / "init" / "cgroup.procs").read_text() == "1"
    assert "+memory" in (version2 / "cgroup.subtree_control").read_text()


def test_no_hierarchy_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no cgroup hierarchy"):
        Cgroups(tmp_path / "missing").create("duplex-a-node1")


def test_a_hierarchy_that_cannot_be_written_is_named(version1: Path) -> None:
    (version1 / "memory" / "duplex-a-node1").write_text("in the way")
    with pytest.raises(LabError, match=r"duplex-a-node1 .*privileged"):
        Cgroups(version1).create("duplex-a-node1")
