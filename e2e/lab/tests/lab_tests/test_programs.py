"""Cache keys and versions of the lab's Go programs."""

from pathlib import Path

import pytest

from duplex_lab.programs import content_key, linker_flags, parse_go_version


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "go.mod").write_text("module x\n\nrequire (\n\tk8s.io/kubernetes v1.36.3\n)\n")
    (tmp_path / "main.go").write_text("package main\n")
    return tmp_path


def test_key_follows_every_file_and_setting(sources: Path) -> None:
    keys = [content_key(sources, ("-s",)), content_key(sources, ("-s", "-w"))]
    (sources / "main.go").write_text("package main // changed\n")
    keys.append(content_key(sources, ("-s",)))
    (sources / "main.go").rename(sources / "other.go")
    keys.append(content_key(sources, ("-s",)))
    assert len(set(keys)) == 4


def test_key_is_the_same_for_the_same_content(sources: Path) -> None:
    key = content_key(sources, ("-s",))
    (sources / "main.go").write_text("package main\n")
    assert content_key(sources, ("-s",)) == key


def test_kubernetes_is_told_its_version(sources: Path) -> None:
    flags = linker_flags(sources)
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.3" in flags
    assert "-X k8s.io/component-base/version.gitMinor=36" in flags


def test_other_programs_have_none(sources: Path) -> None:
    (sources / "go.mod").write_text("module x\n")
    assert linker_flags(sources) == "-s -w"


@pytest.mark.parametrize(
    ("text", "version"),
    [("go1.26.8\n", (1, 26, 8)), ("go1.9", (1, 9)), ("devel +abc", (0,)), ("", (0,))],
)
def test_go_versions_compare_as_numbers(text: str, version: tuple[int, ...]) -> None:
    assert parse_go_version(text) == version
