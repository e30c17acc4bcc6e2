"""What the machine lacks is said before anything is started."""

import os
import shutil
from pathlib import Path

import pytest

from duplex_lab import system
from duplex_lab.errors import LabError
from duplex_lab.progress import Progress


def test_without_root_another_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="run as root, or use CLUSTER=kind"):
        system.prepare_machine(Progress())


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the machine one with none of the programs, whose place is the folder returned."""
    found = shutil.which
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, **_: found(name, path=str(tmp_path)))
    monkeypatch.setattr(system, "_CNI_FOLDERS", (tmp_path / "cni",))
    monkeypatch.setattr(system, "_BUSYBOX", tmp_path / "busybox")
    return tmp_path


def test_without_apt_the_packages_are_named(bare: Path) -> None:
    del bare
    with pytest.raises(LabError, match="buildah busybox-static containerd containernetworking-plugins"):
        system.prepare_machine(Progress())


def test_what_is_there_is_not_missing(bare: Path) -> None:
    for name in ("containerd", "ctr", "busybox", "cni/bridge"):
        (bare / name).parent.mkdir(exist_ok=True)
        (bare / name).touch(mode=0o755)
    assert system.cni_folder() == bare / "cni"
    assert not {"containerd", "busybox-static", "containernetworking-plugins"} & set(system.missing_packages())
    assert {"runc", "iptables", "buildah"} <= set(system.missing_packages())


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the packages that are installed from now on; libnuma is there once its package is among them."""
    asked: list[str] = []
    monkeypatch.setattr(system, "_install", lambda packages, _: asked.extend(packages))
    monkeypatch.setattr(system, "_lacks_numa", lambda: "libnuma1" not in asked)
    return asked


def test_the_engines_library_is_installed_where_it_lacks(monkeypatch: pytest.MonkeyPatch, installs: list[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    system.prepare_engine(Progress())
    system.prepare_engine(Progress())
    assert installs == ["libnuma1"]


def test_without_root_the_engines_library_is_named(monkeypatch: pytest.MonkeyPatch, installs: list[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="libnuma1"):
        system.prepare_engine(Progress())
    assert installs == []


def test_the_loader_is_asked_for_the_engines_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    monkeypatch.setattr(system.sys, "executable", str(python))
    for status in (0, 1):
        python.write_text(f'#!/bin/sh\ncase "$2" in *libnuma.so.1*) exit {status} ;; esac\nexit 7\n')
        python.chmod(0o755)
        assert system._lacks_numa() is bool(status)
