"""What is measured and measured with, obtained once into the cache folder: C programs, nginx, peers from PyPI."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from duplex_lab.paths import REPOSITORY, cache_folder

from .machine import BenchError

VLLM_ROUTER: Final = "0.1.17"
VLLM: Final = "0.33.0"
EXAMPLE: Final = "examples/disaggregated/disaggregated_serving/disagg_proxy_multiturn.py"
# What the example imports. uvloop and httptools speed it up; sniffio spares httpcore a failing import in every lock.
_EXAMPLE_NEEDS: Final = (
    "fastapi==0.163.2",
    "uvicorn==0.54.0",
    "httpx==0.28.1",
    "uvloop==0.23.0",
    "httptools==0.8.0",
    "sniffio==1.3.1",
)
_SOURCES: Final = Path(__file__).parent
_DEBIAN_PYTHON: Final = "/usr/bin/python3"


def _folder() -> Path:
    folder = cache_folder() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(command: list[str | Path], what: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise BenchError(f"{what} failed:\n{(ran.stdout + ran.stderr)[-3000:]}")
    return ran.stdout


def build(name: str) -> Path:
    """Return a C program of this folder, built if its sources have changed."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BenchError("a C compiler is missing (Debian: apt-get install gcc libc6-dev)")
    digest = hashlib.sha256()
    for source in sorted([*_SOURCES.glob("*.h"), _SOURCES / f"{name}.c"]):
        digest.update(source.read_bytes())
    program = _folder() / f"{name}-{digest.hexdigest()[:16]}"
    if not program.exists():
        made = program.with_suffix(f".{os.getpid()}")
        _run([compiler, "-O2", "-Wall", "-o", made, _SOURCES / f"{name}.c"], f"building {name}.c")
        made.rename(program)
    return program


def native_router() -> Path:
    """Return a folder with the router compiled as its image has it, compiled anew if its sources have changed."""
    digest = hashlib.sha256(importlib.metadata.version("mypy").encode())
    parts = ("router/native.py", "router/csrc", "router/src", "connector/src", "operator/src/duplex_kube")
    for part in (REPOSITORY / each for each in parts):
        for source in sorted(each for each in part.rglob("*") if each.suffix in {".py", ".c", ".h"}) or [part]:
            digest.update(source.read_bytes())
    folder = _folder() / f"native-{digest.hexdigest()[:16]}"
    if not folder.exists():
        print("compiling the router: two minutes", flush=True)
        made = folder.with_suffix(f".{os.getpid()}")
        _run([sys.executable, REPOSITORY / "router" / "native.py", made], "compiling the router")
        made.rename(folder)
    return folder


def nginx() -> str:
    """Return the nginx that is installed."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise BenchError("nginx, the reference, is missing (Debian: apt-get install nginx-light)")
    return program


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.exists() else shutil.which("uv")
    if program is None:
        raise BenchError("uv is not installed; `make setup` installs it")
    return program


def environment(name: str, packages: tuple[str, ...]) -> Path:
    """Return the folder of a virtual environment with these packages."""
    key = hashlib.sha256("\0".join((sys.version, *packages)).encode()).hexdigest()[:12]
    place = _folder() / f"{name}-{key}"
    stamp = place / ".complete"
    if not stamp.exists():
        _run([_uv(), "venv", "--quiet", "--clear", "--python", sys.executable, place], f"the environment of {name}")
        _run([_uv(), "pip", "install", "--quiet", "--python", place, *packages], f"installing {name}")
        stamp.touch()
    return place


def vllm_router() -> Path:
    """Return vllm-router, the Rust router of the vLLM project."""
    return environment("vllm-router", (f"vllm-router=={VLLM_ROUTER}",)) / "bin/vllm-router"


def vllm_example() -> list[str]:
    """Return the command of vLLM's example proxy with reuse over turns, from vLLM's source distribution."""
    python = environment("vllm-example", _EXAMPLE_NEEDS) / "bin/python"
    return [str(python), str(source_files(EXAMPLE) / EXAMPLE)]


def source_files(*members: str) -> Path:
    """Return a folder with these files of vLLM's source distribution, found by way of uv, which knows where it is."""
    folder = _folder() / f"vllm-{VLLM}"
    folder.mkdir(exist_ok=True)
    if all((folder / member).exists() for member in members):
        return folder
    wanted = _folder() / "vllm.in"
    wanted.write_text(f"vllm=={VLLM}\n")
    lock = _run([_uv(), "pip", "compile", "--quiet", "--no-deps", "--format", "pylock.toml", wanted], "finding vLLM")
    source = tomllib.loads(lock)["packages"][0]["sdist"]
    with urllib.request.urlopen(source["url"], timeout=120) as answer:  # noqa: S310 - the index's own address
        archive = _folder() / "vllm.tar.gz"
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != source["hashes"]["sha256"]:
        raise BenchError("vLLM's source distribution is not the one that the index names")
    archive.write_bytes(content)
    try:
        with tarfile.open(archive) as files:
            for member in members:
                found = files.extractfile(f"vllm-{VLLM}/{member}")
                if found is None:
                    raise BenchError(f"vLLM {VLLM} has no {member}")
                place = folder / member
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(found.read())
    finally:
        archive.unlink()
    return folder


@dataclass(frozen=True)
class Interpreter:
    """A Python to run the router with, what it is, and the environment that it needs."""

    program: str
    description: str
    environment: dict[str, str]


def router_python() -> Interpreter:
    """Return $BENCH_PYTHON, else the system's Python where it fits and is built with profile guidance, else our own.

    Images run a Python that is built so; one built from source without it is about a seventh slower.
    """
    chosen = os.environ.get("BENCH_PYTHON")
    for program in (chosen,) if chosen else (_DEBIAN_PYTHON, sys.executable):
        facts = _facts(program)
        if facts is None:
            if chosen:
                raise BenchError(f"BENCH_PYTHON: {program} does not run")
            continue
        version, guided = facts
        ours = f"{sys.version_info.major}.{sys.version_info.minor}"
        fits = version.startswith(f"{ours}.")
        if (fits and guided) or program in (chosen, sys.executable):
            compiled = [] if os.environ.get("BENCH_INTERPRETED") else [str(native_router())]
            paths = [*compiled, sysconfig.get_path("purelib"), *(str(REPOSITORY / part) for part in _source_folders())]
            kind = "profile-guided build" if guided else "no profile guidance"
            what = f"{program} {version}, {kind}, router {'compiled' if compiled else 'as written'}"
            return Interpreter(program, what, {"PYTHONPATH": os.pathsep.join(paths)})
    raise BenchError("no Python to run the router with")


def _source_folders() -> list[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return sorted(
        {str(Path(each).parent) for each in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    )


def _facts(program: str) -> tuple[str, bool] | None:
    code = "import platform, sysconfig; print(platform.python_version(), sysconfig.get_config_var('CONFIG_ARGS'))"
    try:
        ran = subprocess.run([program, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    version, _, options = ran.stdout.partition(" ")
    # Debian's rules run `make profile-opt`, of which its configuration does not speak.
    debian = program == _DEBIAN_PYTHON and Path("/etc/debian_version").exists()
    return version, debian or "--enable-optimizations" in options


def versions() -> dict[str, str]:
    """Return what the figures were taken with."""
    said = subprocess.run([nginx(), "-v"], capture_output=True, text=True, check=True).stderr
    found = re.search(r"nginx/(\S+)", said)
    return {
        "nginx": found[1] if found else said.strip(),
        "vllm-router": VLLM_ROUTER,
        "vLLM example": f"disagg_proxy_multiturn.py of {VLLM}",
        "duplex-serving": importlib.metadata.version("duplex-serving"),
        "python": router_python().description,
        "uvloop": importlib.metadata.version("uvloop"),
    }
