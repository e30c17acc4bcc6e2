"""An image is built again when, and only when, something that goes into it has changed."""

import os
from pathlib import Path

import pytest

from duplex_lab import images
from duplex_lab.base_images import Image
from duplex_lab.errors import LabError

BASE = Image("duplex.local/base:1", Path("base-1.tar"))
DOCKERFILE = """\
ARG BASE=python:3.12-slim
FROM ${BASE} AS project
COPY --chown=1:1 pyproject.toml README.md ./
COPY router/src router/src
FROM ${BASE}
COPY --from=project /dist /tmp/dist
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "router/src/package").mkdir(parents=True)
    (tmp_path / "router/src/package/module.py").write_text("A = 1\n")
    for name, text in {"pyproject.toml": "", "README.md": "", "Dockerfile": DOCKERFILE, "other.py": ""}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def key(repository: Path, base: Image = BASE) -> str:
    return images.build_key(repository, repository / "Dockerfile", base)


def test_sources_are_those_copied_from_the_context() -> None:
    assert images.copied_sources(DOCKERFILE) == ["pyproject.toml", "README.md", "router/src"]


@pytest.mark.parametrize("change", ["router/src/package/module.py", "router/src/package/new.py", "README.md"])
def test_what_is_copied_counts(repository: Path, change: str) -> None:
    before = key(repository)
    (repository / change).write_text("changed\n")
    assert key(repository) != before


def test_renaming_counts(repository: Path) -> None:
    before = key(repository)
    (repository / "router/src/package/module.py").rename(repository / "router/src/package/renamed.py")
    assert key(repository) != before


def test_the_base_and_the_dockerfile_count(repository: Path) -> None:
    before = key(repository)
    assert key(repository, Image(BASE.reference, Path("base-2.tar"))) != before
    (repository / "Dockerfile").write_text(DOCKERFILE + "USER 65532\n")
    assert key(repository) != before


def test_nothing_else_counts(repository: Path) -> None:
    before = key(repository)
    (repository / "other.py").write_text("changed\n")
    (repository / "router/src/package/__pycache__").mkdir()
    (repository / "router/src/package/__pycache__/module.pyc").write_text("")
    assert key(repository) == before


def test_a_copy_of_nothing_is_an_error(repository: Path) -> None:
    (repository / "README.md").unlink()
    with pytest.raises(LabError, match=r"README\.md"):
        key(repository)


def test_an_unknown_image_is_answered_with_the_names() -> None:
    with pytest.raises(LabError, match="operator, router, connector"):
        images.dockerfile("nonsense")


@pytest.mark.parametrize("name", ["operator", "router", "connector", "simulator"])
def test_our_own_dockerfiles_copy_what_exists(name: str) -> None:
    assert len(images.build_key(images.REPOSITORY, images.dockerfile(name), BASE)) == 16


def test_the_latest_builds_are_kept(tmp_path: Path) -> None:
    for index in range(4):
        archive = tmp_path / f"router-{index}.tar"
        archive.write_text("")
        os.utime(archive, (index, index))
    (tmp_path / "operator-0.tar").write_text("")
    images._forget_old(tmp_path, "router")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["operator-0.tar", "router-2.tar", "router-3.tar"]
