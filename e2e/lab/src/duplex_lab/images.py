"""Build images/<name>/Dockerfile with buildah, without Docker or a registry; an unchanged image is not built again.

The Dockerfiles are the users' own: only the bases (made from this machine, without a C compiler, so that the router is
not compiled: NATIVE) and PIP_OPTIONS (wheels at hand) differ here.
Everything, buildah's storage too, lies in the cache folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from duplex_lab.base_images import Image, busybox_base, host_image, python_base, store_image
from duplex_lab.errors import LabError
from duplex_lab.paths import REPOSITORY, cache_folder
from duplex_lab.progress import Progress
from duplex_lab.store_server import ensure_store_program
from duplex_lab.wheels import ensure_wheels, pip_wheel

NAMES: Final = ("operator", "router", "connector", "simulator", "engine-cpu", "store")
ENGINE_CPU: Final = "engine-cpu"
STORE: Final = "store"
_SHELL_ONLY: Final = ("connector",)
_WHEELS_IN_BUILD: Final = "/wheels"
_KEPT_ARCHIVES: Final = 2


def reference(name: str) -> str:
    """Return the reference of an image in the lab's clusters."""
    return f"duplex.local/{name}:dev"


def dockerfile(name: str) -> Path:
    """Return an image's Dockerfile; LabError names the images there are."""
    file = REPOSITORY / "images" / name / "Dockerfile"
    if name not in NAMES or not file.exists():
        raise LabError(f"no image {name!r}; there are {', '.join(NAMES)}")
    return file


def build_image(name: str, progress: Progress) -> Image:
    """Return the image's archive, built now unless one of the same sources, pins and base is in the cache.

    The real engine's image is near-empty here: its environment is 5 GB, which the lab mounts instead (engine.py). The
    store's is made from the server that tests use.
    """
    if name == ENGINE_CPU:
        return host_image(reference(name))
    if name == STORE:
        return store_image(reference(name), ensure_store_program(progress))
    file = dockerfile(name)
    with _lock():
        wheels = None if name in _SHELL_ONLY else ensure_wheels(progress)
        base = python_base(pip_wheel(wheels)) if wheels else busybox_base()
        folder = cache_folder() / "images"
        archive = folder / f"{name}-{build_key(REPOSITORY, file, base)}.tar"
        if not archive.exists():
            progress.say(f"building image {name}")
            unfinished = folder / f"{name}.unfinished"
            _build(file, base, wheels, reference(name), unfinished)
            if archive.name != f"{name}-{build_key(REPOSITORY, file, base)}.tar":
                # Sources were edited meanwhile: the image serves, but not under the name of either content.
                archive = folder / f"{name}-edited-{time.time_ns()}.tar"
            unfinished.replace(archive)
            _forget_old(folder, name)
        archive.touch()
        return Image(reference(name), archive)


def build_key(repository: Path, file: Path, base: Image) -> str:
    """Return a hash of what an image is made of: Dockerfile, base, and every file that its COPY lines name."""
    digest = hashlib.sha256(file.read_bytes() + base.archive.name.encode())
    for source in copied_sources(file.read_text()):
        for each in _files(repository / source):
            digest.update(str(each.relative_to(repository)).encode() + hashlib.sha256(each.read_bytes()).digest())
    return digest.hexdigest()[:16]


def copied_sources(text: str) -> list[str]:
    """Return the paths that a Dockerfile copies from its context; copies from another stage are left out."""
    sources: list[str] = []
    for line in re.findall(r"^COPY\s+(.+)$", text, re.MULTILINE):
        words = line.split()
        if not any(word.startswith("--from=") for word in words):
            sources += [word for word in words if not word.startswith("--")][:-1]
    return sources


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise LabError(f"a Dockerfile copies {path}, which does not exist")
    return sorted(each for each in path.rglob("*") if each.is_file() and "__pycache__" not in each.parts)


@contextmanager
def _lock() -> Iterator[None]:
    """Let one build run at a time; the kernel drops the lock when we die."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "images.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(file: Path, base: Image, wheels: Path | None, name: str, archive: Path) -> None:
    tagged = f"{base.reference.rpartition(':')[0]}:{base.archive.stem.rpartition('-')[2]}"
    if _buildah("inspect", "--type", "image", tagged, check=False).returncode:
        pulled = _buildah("pull", "--quiet", f"oci-archive:{base.archive}").stdout.split()[-1]
        _buildah("tag", pulled, tagged)
    options = ["--file", str(file), "--layers", "--pull-never", "--tag", name]
    for argument in (f"BASE={tagged}", f"BUILD_BASE={tagged}", "NATIVE=0"):
        options += ["--build-arg", argument]
    if wheels:
        options += ["--volume", f"{wheels}:{_WHEELS_IN_BUILD}:ro"]
        options += ["--build-arg", f"PIP_OPTIONS=--no-index --find-links={_WHEELS_IN_BUILD}"]
    _buildah("bud", *options, str(REPOSITORY))
    archive.unlink(missing_ok=True)
    # Docker's form of archive, because buildah compresses the other, which takes longer than all else here.
    _buildah("push", "--quiet", name, f"docker-archive:{archive}:{name}")


def _buildah(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    storage = cache_folder() / "buildah"
    command = ["buildah", "--root", f"{storage}/root", "--runroot", f"{storage}/run", "--storage-driver", _driver()]
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(storage / "tmp")}
    (storage / "tmp").mkdir(parents=True, exist_ok=True)
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, env=environment)
    if check and done.returncode:
        shown = (done.stdout + done.stderr).strip()[-3000:]
        raise LabError(f"buildah {arguments[0]} failed:\n{shown}")
    return done


def _driver() -> str:
    """Return buildah's storage driver: overlay cannot lie on an overlay, as a container's own file system is one."""
    shown = subprocess.run(
        ["stat", "--file-system", "--format=%T", cache_folder()], capture_output=True, text=True, check=True
    )
    return "vfs" if shown.stdout.strip() == "overlayfs" else "overlay"


def _forget_old(folder: Path, name: str) -> None:
    """Keep the last few builds of an image, so that going back to an earlier checkout costs nothing."""
    builds = sorted(folder.glob(f"{name}-*.tar"), key=lambda file: file.stat().st_mtime)
    for old in builds[:-_KEPT_ARCHIVES]:
        old.unlink()
