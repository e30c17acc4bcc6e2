"""The wheels that image builds install from, downloaded once for each set of pins, so that builds need no network."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from duplex_lab.errors import LabError
from duplex_lab.paths import REPOSITORY, cache_folder
from duplex_lab.progress import Progress

_EXTRAS: Final = ("operator", "router", "simulator")
_CONSTRAINTS: Final = REPOSITORY / "requirements" / "dev.txt"


def ensure_wheels(progress: Progress) -> Path:
    """Return the folder of wheels for every image's dependencies, hatchling and pip, at the pinned versions."""
    needed = _requirements()
    digest = hashlib.sha256(_CONSTRAINTS.read_bytes())
    digest.update(" ".join([sys.version, platform.machine(), *needed]).encode())
    folder = cache_folder() / "wheels" / digest.hexdigest()[:16]
    if folder.is_dir():
        return folder
    progress.say("downloading the wheels that the images install")
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    command = [*_pip(), "download", "--quiet", "--only-binary", ":all:", "--constraint", str(_CONSTRAINTS)]
    done = subprocess.run([*command, "--dest", str(unfinished), *needed], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"downloading the images' wheels failed: {done.stderr.strip()[-800:]}")
    unfinished.rename(folder)
    return folder


def pip_wheel(wheels: Path) -> Path:
    """Return pip's own wheel among them, which goes into the base image."""
    return next(wheels.glob("pip-*.whl"))


def _requirements() -> list[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    needed = {requirement for extra in _EXTRAS for requirement in extras[extra]}
    return sorted(needed | set(project["build-system"]["requires"]) | {"pip"})


def _pip() -> list[str]:
    """Return the command of a pip for this Python release: the environment's own, else the base interpreter's."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    return [sys._base_executable, "-m", "pip"]  # type: ignore[attr-defined] # noqa: SLF001 - the way out of a venv
