"""Looks before an engine starts whether it can: `python -m duplex_connector.preflight`, an init container's program.

A broken fabric still serves: vLLM answers 200 and libfabric falls back to TCP in silence. What would end so, or minutes
later in a stack trace, ends here in one line that says what to do; the operator shows it in the serving's conditions.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final

from .contract import PREFLIGHT_OVER_TCP, PREFLIGHT_PASSED, Backend, capability, parse_version

WARN_ONLY: Final = "DUPLEX_PREFLIGHT"
"""Environment variable; `warn` lets the engine start whatever is found: for a good image that looks otherwise."""

MINIMUM_FABRIC_NIXL: Final = (1, 3, 2)
"""Earlier releases hang over EFA with small writes (ai-dynamo/nixl#1862, mended by PR 1924)."""

PROBE_SECONDS: Final = 120.0

TERMINATION_LOG: Final = "dev/termination-log"
"""The kubelet mounts it into every container. Of a failed one it shows the log's end too, of a good one only this."""

_IPC_LOCK: Final = 1 << 14
_ENOUGH_MEMLOCK_BYTES: Final = 16 * 1024**3
"""NIXL registers 32 MiB for each EFA device in each process, and libfabric pins what is sent beside."""

_ACCELERATOR_DEVICES: Final = {
    "nvidia": ("nvidia[0-9]*", "nvidia.com/gpu"),
    "neuron": ("neuron[0-9]*", "aws.amazon.com/neuron"),
}

_PROBE: Final = (
    "from nixl._api import nixl_agent, nixl_agent_config; "
    "nixl_agent('preflight', nixl_agent_config(backends=['{backend}']))"
)


@dataclass(frozen=True)
class Wanted:
    """What the operator rendered for this pod. `version`: the vLLM release that it rendered for."""

    accelerator: str
    devices: int
    efa: int
    backend: Backend
    version: str
    model: str
    neuron: bool = False


@dataclass(frozen=True)
class Ran:
    """How a program ended; `status` is None where it is not there or took too long."""

    status: int | None
    output: str


def run(*command: str) -> Ran:
    """Run a program to its end, with its output on one stream."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PROBE_SECONDS, check=False
        )
    except FileNotFoundError:
        return Ran(None, f"{command[0]} is not there")
    except subprocess.TimeoutExpired:
        return Ran(None, f"no answer within {PROBE_SECONDS:.0f} s")
    return Ran(done.returncode, done.stdout)


def package_version(name: str) -> str:
    """Return the release of an installed package, empty where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class Machine:
    """What the checks look at: a file system from `root`, the environment, programs, packages."""

    root: Path = Path("/")
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    run: Callable[..., Ran] = run
    version: Callable[[str], str] = package_version

    def text(self, path: str) -> str:
        """Return a file's text, empty where it is not there."""
        try:
            return (self.root / path).read_text()
        except OSError:
            return ""

    def leave_word(self, verdict: str) -> None:
        """Write the verdict where the kubelet takes a container's last words from; outside a pod there is no such."""
        path = self.root / TERMINATION_LOG
        if path.exists():
            path.write_text(verdict)

    def count(self, folder: str, pattern: str) -> int:
        """Return how many entries of a folder match."""
        return len(list((self.root / folder).glob(pattern)))


def check(wanted: Wanted, machine: Machine) -> Iterator[str]:
    """Yield every reason why the engine cannot run as wanted, each with its remedy."""
    yield from _devices(wanted, machine)
    if wanted.efa:
        yield from _efa_devices(wanted, machine)
        yield from _memory_lock(machine)
        yield from _huge_pages(machine)
    versions = list(_versions(wanted, machine))
    yield from versions
    if not versions:
        yield from _backend(wanted, machine)
    yield from _model(wanted, machine)


def _devices(wanted: Wanted, machine: Machine) -> Iterator[str]:
    names = _ACCELERATOR_DEVICES.get(wanted.accelerator)
    if names is None:
        return
    pattern, resource = names
    found = machine.count("dev", pattern)
    if found < wanted.devices:
        yield (
            f"{found} of {wanted.devices} devices of {resource} are in the pod: look at the node's device plugin and "
            "driver"
        )


def _efa_devices(wanted: Wanted, machine: Machine) -> Iterator[str]:
    found = machine.count("dev/infiniband", "uverbs*")
    if found < wanted.efa:
        yield (
            f"{found} of {wanted.efa} EFA devices are in the pod: the node group has no EFA interfaces, or the EFA "
            "device plugin does not run there"
        )
    elif found > wanted.efa:
        yield (
            f"{found} EFA devices are in the pod, not the {wanted.efa} it asked for: it is privileged, or another "
            "plugin mounts /dev/infiniband; transfers of other pods would share them"
        )
    if found:
        yield from _provider(wanted, machine)


def _provider(wanted: Wanted, machine: Machine) -> Iterator[str]:
    ran = machine.run("fi_info", "-p", "efa", "-t", "FI_EP_RDM")
    if ran.status is None:
        yield "the image has no fi_info, so no libfabric of EFA: build it from images/engine-efa"
    elif ran.status != 0:
        words = _last_line(ran.output)
        yield f"libfabric finds no provider efa ({words}): the image's EFA installer and the node's differ"
    else:
        domains = set(re.findall(r"domain:\s*(\S+)", ran.output))
        if len(domains) < wanted.efa:
            seen = f"{len(domains)} of {wanted.efa}"
            yield f"libfabric sees {seen} EFA devices: the node's EFA driver has not brought up all"


def _memory_lock(machine: Machine) -> Iterator[str]:
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", machine.text("proc/self/status"), re.MULTILINE)
    if capabilities and int(capabilities[1], 16) & _IPC_LOCK:
        return
    limit = re.search(r"^Max locked memory\s+(\S+)", machine.text("proc/self/limits"), re.MULTILINE)
    if limit and (limit[1] == "unlimited" or int(limit[1]) >= _ENOUGH_MEMLOCK_BYTES):
        return
    yield (
        f"only {limit[1] if limit else 'an unknown number of'} bytes may be locked and IPC_LOCK is not in force: "
        "run as user 0, or set LimitMEMLOCK=infinity for the node's containerd"
    )


def _huge_pages(machine: Machine) -> Iterator[str]:
    if machine.env.get("FI_EFA_USE_HUGE_PAGE") != "1":
        return
    free = re.search(r"^HugePages_Free:\s*(\d+)", machine.text("proc/meminfo"), re.MULTILINE)
    if free is None or int(free[1]) == 0:
        yield "FI_EFA_USE_HUGE_PAGE is 1 and the node has no free huge pages: request hugepages-2Mi, or leave it at 0"


def _versions(wanted: Wanted, machine: Machine) -> Iterator[str]:
    # The plugin's releases are numbered after the vLLM that they plug into.
    installed = (machine.version("vllm-neuron") if wanted.neuron else "") or machine.version("vllm")
    if not installed:
        yield "the image's python3 has no package vllm: use an image whose python3 runs the engine"
        return
    if parse_version(installed) != parse_version(wanted.version):
        yield f"the image has vLLM {installed}, engine.version says {wanted.version}: set it to what is inside"
    row = capability(wanted.version, neuron=wanted.neuron)
    nixl = machine.version("nixl") or machine.version("nixl-cu13") or machine.version("nixl-cu12")
    if not nixl:
        yield "the image has no package nixl: install it, or use an image that has it"
        return
    least = max(_numbers(row.minimum_nixl) if row else (0,), MINIMUM_FABRIC_NIXL if wanted.efa else (0,))
    if _numbers(nixl) < least:
        yield f"the image has NIXL {nixl}, and at least {'.'.join(map(str, least))} is needed: use a newer image"


def _backend(wanted: Wanted, machine: Machine) -> Iterator[str]:
    ran = machine.run(sys.executable, "-c", _PROBE.format(backend=wanted.backend.value))
    if ran.status != 0:
        yield (
            f"NIXL cannot make its backend {wanted.backend.value} ({_last_line(ran.output)}): its plugin's libraries "
            "are missing in the image (for LIBFABRIC see images/engine-efa)"
        )
    elif wanted.efa and "TCP fallback" in ran.output:
        yield f"{PREFLIGHT_OVER_TCP}, not EFA: the image's libfabric has no provider efa"


def _model(wanted: Wanted, machine: Machine) -> Iterator[str]:
    if wanted.model.startswith("/") and not machine.text(f"{wanted.model.lstrip('/')}/config.json"):
        yield f"there is no {wanted.model}/config.json: check model.source and the path in the volume"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


def main(arguments: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    """Run the checks and print what was found; 1 where the engine must not start."""
    parser = argparse.ArgumentParser(prog="duplex-preflight", description=__doc__)
    parser.add_argument("--accelerator", required=True, choices=[*_ACCELERATOR_DEVICES, "none"])
    parser.add_argument("--devices", type=int, default=0, help="accelerators that the pod asked for")
    parser.add_argument("--efa", type=int, default=0, help="EFA devices that the pod asked for")
    parser.add_argument("--backend", required=True, type=Backend, choices=list(Backend))
    parser.add_argument("--version", required=True, help="the vLLM release that the pod was rendered for")
    parser.add_argument("--model", required=True, help="what vLLM gets as its model")
    options = parser.parse_args(arguments)
    wanted = Wanted(**vars(options), neuron=options.accelerator == "neuron")
    machine = machine or Machine()
    problems = list(check(wanted, machine))
    verdict = f"preflight: {'; '.join(problems)}" if problems else PREFLIGHT_PASSED
    (sys.stderr if problems else sys.stdout).write(f"{verdict}\n")
    machine.leave_word(verdict)
    return 1 if problems and machine.env.get(WARN_ONLY) != "warn" else 0


if __name__ == "__main__":
    sys.exit(main())
