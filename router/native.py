"""`python router/native.py FOLDER`: compile the router's hot path with mypyc, from the same source.

The folder, which must not be there yet, gets the package with its compiled modules, to go over an installed one or
first on PYTHONPATH. Needs a C compiler, Python's headers, mypy, setuptools and what the router imports. Without it
everything runs as it is written, only slower.
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
        # Nothing to run.
        "http/settings.py",
    }
)

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


def compile_into(folder: Path) -> list[Path]:
    """Copy the package there and compile it in place; return the compiled files. Takes some two minutes.

    Raises subprocess.CalledProcessError, with what compilers said.
    """
    shutil.copytree(SOURCES[0] / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
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
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and its argument
        sys.exit("usage: python router/native.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    try:
        found = compile_into(folder)
    except subprocess.CalledProcessError as error:
        sys.exit(f"the router could not be compiled:\n{error.stdout[-3000:]}\n{error.stderr[-3000:]}")
    print(f"{len(found)} compiled modules in {folder}")


if __name__ == "__main__":
    main()
