"""`python router/native.py [--scanner] FOLDER`: compile the router's hot path, its Python with mypyc and its C.

The folder, which must not be there yet, gets the package with its compiled modules, to go over an installed one or
first on PYTHONPATH; with --scanner just the module that is C, which belongs into duplex_router/wire. Needs a compiler,
Python's headers, mypy, setuptools and what the router imports. Without it all runs as it is written, only slower.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT / "router" / "src", ROOT / "connector" / "src")
PACKAGE = "duplex_router"
HOT = ("wire", "ledger", "fleet", "turn", "http")

INTERPRETED = frozenset(
    {
        # msgspec makes its types while it runs, from annotations and class arguments that mypyc does not keep.
        "wire/shapes.py",
        "wire/api_errors.py",
        "fleet/document.py",
        "fleet/models.py",
        "ledger/content.py",
        "ledger/record.py",
        # Binds names to what there is, compiled or not: mypyc would bind them for good.
        "wire/scanner.py",
        # Nothing to run.
        "http/settings.py",
    }
)

SCANNER = "duplex_router.wire._scan"
SCANNER_SOURCES = ROOT / "router" / "csrc"

_BUILD_SCANNER = """
import sys
from setuptools import Extension, setup
name, *sources = sys.argv.pop().split("\\n")
options = ["-O3", "-flto", "-fvisibility=hidden"]
setup(name="scanner", ext_modules=[Extension(name, sources, extra_compile_args=options, extra_link_args=options)])
"""

_BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup
modules = mypycify(
    ["--config-file", "/dev/null", "--explicit-package-bases", "--ignore-missing-imports", *sys.argv.pop().split()],
    opt_level="2",
    debug_level="0",
)
setup(name="native", ext_modules=modules)
"""


def hot_modules(package: Path) -> list[Path]:
    """Return the modules that are compiled."""
    found = [path for part in HOT for path in sorted((package / part).glob("*.py"))]
    return [path for path in found if path.name != "__init__.py" and str(path.relative_to(package)) not in INTERPRETED]


def compile_scanner(into: Path, **environment: str) -> Path:
    """Compile the scanner into a folder, in some seconds; return the module's file.

    Raises subprocess.CalledProcessError, with what the compiler said.
    """
    sources = "\n".join([SCANNER.rpartition(".")[2], *map(str, sorted(SCANNER_SOURCES.glob("*.c")))])
    with tempfile.TemporaryDirectory(prefix="duplex-scanner-") as build:
        command = [sys.executable, "-c", _BUILD_SCANNER, "build_ext", "--build-lib", str(into), "--build-temp", build]
        subprocess.run(
            [*command, sources],
            cwd=build,
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
            text=True,
        )
    return next(into.glob("_scan*.so"))


def compile_into(folder: Path) -> list[Path]:
    """Copy the package there and compile it in place; return the compiled files. Takes some two minutes.

    Raises subprocess.CalledProcessError, with what compilers said.
    """
    shutil.copytree(SOURCES[0] / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    compile_scanner(folder / PACKAGE / "wire")
    modules = " ".join(str(path.relative_to(folder)) for path in hot_modules(folder / PACKAGE))
    with tempfile.TemporaryDirectory(prefix="duplex-native-") as build:
        command = [sys.executable, "-c", _BUILD, "build_ext", "--inplace", "--build-temp", build, modules]
        path = os.pathsep.join([str(folder), str(SOURCES[1]), str(ROOT / "operator" / "src")])
        environment = {**os.environ, "MYPYPATH": path, "MYPY_CACHE_DIR": build, "CFLAGS": "-g0"}
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    shutil.rmtree(folder / "build", ignore_errors=True)
    return sorted(folder.rglob("*.so"))


def main() -> None:
    """Run the command."""
    *options, folder_name = sys.argv[1:] or [""]
    if options not in ([], ["--scanner"]) or not folder_name:
        sys.exit("usage: python router/native.py [--scanner] FOLDER")
    folder = Path(folder_name).resolve()
    folder.mkdir(parents=True, exist_ok=bool(options))
    try:
        found = [compile_scanner(folder)] if options else compile_into(folder)
    except subprocess.CalledProcessError as error:
        sys.exit(f"the router could not be compiled:\n{error.stdout[-3000:]}\n{error.stderr[-3000:]}")
    print(f"{len(found)} compiled modules in {folder}")


if __name__ == "__main__":
    main()
