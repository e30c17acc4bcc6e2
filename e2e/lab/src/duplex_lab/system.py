"""What the local lab needs of the machine: root, Debian's container programs, a few kernel features, libnuma."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from duplex_lab.errors import LabError
from duplex_lab.progress import Progress

_PACKAGES: Final = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "buildah": "buildah",
}
"""Program -> the Debian package that has it."""
_NUMA_PACKAGE: Final = "libnuma1"
_CNI_PACKAGE: Final = "containernetworking-plugins"
_CNI_FOLDERS: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_BUSYBOX: Final = Path("/bin/busybox")
_BRIDGE_SETTING: Final = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


def cni_folder() -> Path | None:
    """Return where the CNI plug-ins lie, None when they are not installed."""
    return next((folder for folder in _CNI_FOLDERS if (folder / "bridge").exists()), None)


def busybox() -> Path:
    """Return the statically linked busybox, which makes the smallest base image."""
    return _BUSYBOX


def missing_packages() -> list[str]:
    """Return the Debian packages whose programs are not here."""
    missing = {package for program, package in _PACKAGES.items() if shutil.which(program, path=_path()) is None}
    if cni_folder() is None:
        missing.add(_CNI_PACKAGE)
    if not _BUSYBOX.exists():
        missing.add("busybox-static")
    return sorted(missing)


def prepare_machine(progress: Progress) -> None:
    """Check what the lab needs and install missing packages; LabError says what the user has to do."""
    if os.geteuid() != 0:
        raise LabError("the local lab makes namespaces and cgroups: run as root, or use CLUSTER=kind with Docker")
    missing = missing_packages()
    if missing:
        _install(missing, progress)
        still = missing_packages()
        if still:
            raise LabError(f"still missing after apt-get install: {', '.join(still)}")
    if not _BRIDGE_SETTING.exists():
        subprocess.run(["modprobe", "br_netfilter"], check=False, capture_output=True)
    if not _BRIDGE_SETTING.exists():
        raise LabError("the kernel module br_netfilter is missing, without which Services do not work: modprobe it")


def prepare_engine(progress: Progress) -> None:
    """Install the library that vLLM's CPU kernels link and small systems lack; LabError says what the user must do."""
    if not _lacks_numa():
        return
    if os.geteuid() != 0:
        raise LabError("vLLM on CPU needs libnuma.so.1: install Debian's package libnuma1, or your system's like")
    _install([_NUMA_PACKAGE], progress)
    if _lacks_numa():
        raise LabError(f"apt-get installed {_NUMA_PACKAGE}, yet libnuma.so.1 cannot be loaded: try `ldconfig -p`")


def _lacks_numa() -> bool:
    # The loader, asked anew each time: a library that was loaded once stays.
    asked = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libnuma.so.1')"]
    return subprocess.run(asked, capture_output=True, check=False).returncode != 0


def _path() -> str:
    """Debian keeps runc and iptables in sbin, which a user's PATH may lack."""
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def _install(packages: list[str], progress: Progress) -> None:
    words = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise LabError(f"install the programs of Debian's packages {words} with this system's package manager")
    progress.say(f"installing Debian packages: {words}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode and "install" in command:
            raise LabError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-800:]}")
