"""Base images made from this machine, for where no registry is reached: its Python, its busybox, or almost nothing.

Each is an OCI archive in the cache, keyed by what it is made of, and takes seconds to make.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from duplex_lab.engine import COMMAND_IN_POD
from duplex_lab.errors import LabError
from duplex_lab.node_settings import SANDBOX_IMAGE
from duplex_lab.oci import ImageConfig, write_archive
from duplex_lab.paths import cache_folder
from duplex_lab.store_server import StoreProgram
from duplex_lab.system import busybox

_FOLDERS: Final = ("etc", "tmp", "var/tmp", "root", "proc", "sys", "dev", "run", "home", "bin", "usr/bin")
_LEFT_OUT: Final = ("test", "idlelib", "ensurepip", "tkinter", "turtledemo", "site-packages", "dist-packages")
"""Parts of the standard library that no container of ours needs, and what is installed beside it."""
_LOADED_AT_RUN_TIME: Final = (
    *("libnss_files.so.2", "libnss_dns.so.2"),
    *("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libutil.so.1", "libresolv.so.2"),
    *("libgcc_s.so.1", "libstdc++.so.6", "libz.so.1"),
)
"""Libraries that glibc opens by name, and those that wheels may count on wherever they run (PEP 600)."""
_QUERY: Final = """
import json, site, sys, sysconfig
print(json.dumps({"prefix": sys.base_prefix, "binary": sys.executable, "stdlib": sysconfig.get_path("stdlib"),
                  "site": site.getsitepackages()[-1], "version": sys.version}))
"""


@dataclass(frozen=True)
class Image:
    """An image as an archive that buildah and containerd read, under the reference that Dockerfiles or pods use."""

    reference: str
    archive: Path


def pause_image(program: Path) -> Image:
    """Return the image of the pod sandbox: the pause program and nothing else."""

    def fill(root: Path) -> None:
        shutil.copy(program, root / "pause")

    config = ImageConfig(entrypoint=["/pause"], user="65535:65535")
    return _image(SANDBOX_IMAGE, [program.read_bytes()], fill, config)


def busybox_base() -> Image:
    """Return a base image with busybox in /bin."""
    config = ImageConfig(command=["sh"], environment={"PATH": "/bin"})
    return _image("duplex.local/base-busybox:1", [busybox().read_bytes()], _fill_with_busybox, config)


def python_base(pip_wheel: Path) -> Image:
    """Return a base image with this machine's Python, pip from a wheel, and busybox for the shell."""
    answer = subprocess.run(
        [sys._base_executable, "-I", "-c", _QUERY],  # type: ignore[attr-defined] # noqa: SLF001 - the way from a venv
        capture_output=True,
        check=True,
        text=True,
    )
    python = _Python(**json.loads(answer.stdout))

    def fill(root: Path) -> None:
        _fill_with_busybox(root)
        python.copy(root, pip_wheel)

    config = ImageConfig(
        command=["python3"], environment={"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
    )
    return _image("duplex.local/base-python:1", [answer.stdout.encode(), pip_wheel.name.encode()], fill, config)


def host_image(reference: str) -> Image:
    """Return the near-empty image of the real engine: under the host runtime its /usr and Python are the machine's."""

    def fill(root: Path) -> None:
        _fill_skeleton(root, bin_is_in_usr=True)
        for link in ("sbin", "lib", "lib64", "lib32"):
            if Path("/", link).is_symlink():
                (root / link).symlink_to(Path("/", link).readlink())
        for name in ("ld.so.cache", "nsswitch.conf"):
            shutil.copy(Path("/etc", name), root / "etc" / name)
        shutil.copytree("/etc/alternatives", root / "etc" / "alternatives", symlinks=True)

    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "HOME": "/tmp",  # noqa: S108 - the container's own, which any user may write
    }
    config = ImageConfig(entrypoint=COMMAND_IN_POD, environment=environment)
    if not Path("/bin").is_symlink():
        raise LabError("real engine pods show the machine's /usr, and this machine keeps programs in /bin beside it")
    return _image(
        reference, [Path("/etc/ld.so.cache").read_bytes(), *(w.encode() for w in COMMAND_IN_POD)], fill, config
    )


def store_image(reference: str, program: StoreProgram) -> Image:
    """Return an image of a Redis or Valkey server and the libraries that it loads, with images/store's command."""

    def fill(root: Path) -> None:
        _fill_skeleton(root, bin_is_in_usr=False)
        shutil.copy(program.server.resolve(), root / "bin/store-server")
        (root / "lib").mkdir()
        for library in _libraries([str(program.server)], program.environment()):
            # The loader has an absolute path of its own, which programs name; the rest is found by name.
            target = root / library.lstrip("/") if Path(library).name.startswith("ld-") else root / "lib"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(library), target if target.name != "lib" else target / Path(library).name)

    config = ImageConfig(
        entrypoint=["/bin/store-server", "--save", "", "--protected-mode", "no", "--bind", "0.0.0.0"],  # noqa: S104 - in a pod
        environment={"LD_LIBRARY_PATH": "/lib"},
        user="65532:65532",
    )
    return _image(reference, [program.server.resolve().read_bytes()], fill, config)


def _image(reference: str, parts: Iterable[bytes], fill: Callable[[Path], None], config: ImageConfig) -> Image:
    """Return the image from the cache, or fill a folder and pack it; this module's own text is part of the key."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    name = re.sub(r"[^a-z0-9]+", "-", reference)
    archive = cache_folder() / "images" / f"{name}-{digest.hexdigest()[:16]}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            root = Path(folder) / "root"
            root.mkdir(mode=0o755)
            fill(root)
            write_archive(archive, reference, [root], config)
    return Image(reference, archive)


def _fill_skeleton(root: Path, *, bin_is_in_usr: bool) -> None:
    for folder in _FOLDERS:
        if folder == "bin" and bin_is_in_usr:
            (root / "bin").symlink_to("usr/bin")
        else:
            (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    users = "root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532:nonroot:/home:/bin/false\n"
    (root / "etc/passwd").write_text(users + "nobody:x:65534:65534:nobody:/home:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\nnonroot:x:65532:\nnogroup:x:65534:\n")


def _fill_with_busybox(root: Path) -> None:
    _fill_skeleton(root, bin_is_in_usr=False)
    shutil.copy(busybox(), root / "bin/busybox")
    for name in subprocess.run([busybox(), "--list"], capture_output=True, text=True, check=True).stdout.split():
        if not (root / "bin" / name).exists():
            (root / "bin" / name).symlink_to("busybox")


@dataclass(frozen=True)
class _Python:
    """This machine's Python: where it lies, and how its folder is laid out."""

    prefix: str
    binary: str
    stdlib: str
    site: str
    version: str

    def copy(self, root: Path, pip_wheel: Path) -> None:
        """Copy interpreter, standard library and shared libraries; the prefix becomes /usr or /usr/local."""
        release = Path(self.stdlib).name
        binary = root / self._target(self.prefix) / "bin" / release
        binary.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(self.binary), binary)
        for alias in ("python3", "python"):
            (binary.parent / alias).symlink_to(release)
        stdlib = root / self._target(self.stdlib)
        shutil.copytree(self.stdlib, stdlib, symlinks=True, ignore=_needless)
        site = root / self._target(self.site)
        site.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(pip_wheel) as wheel:
            wheel.extractall(site)
        self._compile(root, stdlib)
        modules = [str(module) for module in stdlib.glob("lib-dynload/*.so")]
        for library in _libraries([os.path.realpath(self.binary), *modules]):
            target = root / self._target(library)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(library), target)
        shutil.copy("/etc/nsswitch.conf", root / "etc/nsswitch.conf")
        folders = sorted({f"/{self._target(str(Path(each).parent))}" for each in _libraries([self.binary])})
        (root / "etc/ld.so.conf").write_text("\n".join([*folders, "/usr/local/lib"]) + "\n")
        subprocess.run(["ldconfig", "-r", root], check=True, capture_output=True, env={"PATH": "/usr/sbin:/sbin"})

    def _compile(self, root: Path, stdlib: Path) -> None:
        """Compile the library: containers cannot write it, so each start would compile what it imports anew.

        By hash and unchecked, because an archive of ours bears no times (PEP 552).
        """
        options = ["-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"]
        # Its exit status is 1: the library holds a few files that are wrong on purpose.
        subprocess.run([self.binary, "-I", "-m", "compileall", *options, stdlib], check=False, capture_output=True)

    def _target(self, path: str) -> str:
        """Return where a file of the machine goes, relative to the image's root.

        A prefix of its own, such as a version manager's in a home folder, becomes /usr/local: Python finds its
        library by its own place, not by the prefix that it was built for.
        """
        if self.prefix != "/usr" and path.startswith(self.prefix):
            path = f"/usr/local{path.removeprefix(self.prefix)}"
        return path.lstrip("/")


def _needless(_: str, names: list[str]) -> set[str]:
    return {
        name
        for name in names
        if name in _LEFT_OUT
        or name in {"__pycache__", "EXTERNALLY-MANAGED"}
        or name.startswith(("config-", "_tkinter", "_test"))
    }


def _libraries(programs: Iterable[str], environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the shared libraries that programs and modules load, by the paths under which the loader finds them."""
    found: set[str] = set()
    for program in programs:
        shown = subprocess.run(["ldd", program], capture_output=True, text=True, check=False, env=environment).stdout
        found.update(re.findall(r"(/\S+\.so\S*)", shown))
    libc = next((Path(library).parent for library in found if Path(library).name.startswith("libc.so")), None)
    if libc is None:
        raise LabError(f"ldd shows no libc for {sys.executable}: a base image needs a glibc Python")
    found.update(str(libc / name) for name in _LOADED_AT_RUN_TIME if (libc / name).exists())
    return sorted(found)
