"""Preflight on faked /sys, /dev and /proc trees, and its probes as real processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from duplex_connector.contract import PREFLIGHT_PASSED, Backend
from duplex_connector.preflight import Machine, Ran, Wanted, check, main, package_version, run

P5EN = Wanted("nvidia", 8, 16, Backend.LIBFABRIC, "0.33.0", "/models")
CPU = Wanted("none", 0, 0, Backend.UCX, "0.33.0", "Qwen/Qwen3-32B")

FI_INFO = "\n".join(f"provider: efa\n    domain: rdmap{number}s0-rdm" for number in range(16))


@dataclass
class Pod:
    """A tree that is right for a whole p5en node, and what its programs and packages say."""

    root: Path
    gpus: int = 8
    efa: int = 16
    capabilities: str = "0000000000004000"
    locked: str = "8388608"
    huge_pages: int = 5128
    model: bool = True
    fi_info: Ran = field(default_factory=lambda: Ran(0, FI_INFO))
    nixl_probe: Ran = field(default_factory=lambda: Ran(0, "Created 16 rails using provider=efa"))
    packages: Mapping[str, str] = field(default_factory=lambda: {"vllm": "0.33.0", "nixl": "1.5.0"})
    env: Mapping[str, str] = field(default_factory=dict)

    def machine(self) -> Machine:
        (self.root / "dev/infiniband").mkdir(parents=True)
        (self.root / "proc/self").mkdir(parents=True)
        for number in range(self.gpus):
            (self.root / f"dev/nvidia{number}").touch()
        (self.root / "dev/nvidiactl").touch()
        for number in range(self.efa):
            (self.root / f"dev/infiniband/uverbs{number}").touch()
        (self.root / "proc/self/status").write_text(f"Name:\tpython3\nCapEff:\t{self.capabilities}\n")
        limits = (
            f"Limit    Soft Limit  Hard Limit  Units\nMax locked memory         {self.locked}  {self.locked}  bytes\n"
        )
        (self.root / "proc/self/limits").write_text(limits)
        (self.root / "proc/meminfo").write_text(f"HugePages_Free:     {self.huge_pages}\n")
        if self.model:
            (self.root / "models").mkdir()
            (self.root / "models/config.json").write_text("{}")
        return Machine(self.root, self.env, self.answer, lambda name: self.packages.get(name, ""))

    def answer(self, *command: str) -> Ran:
        return self.fi_info if command[0] == "fi_info" else self.nixl_probe


def test_a_pod_that_is_right_passes(tmp_path: Path) -> None:
    assert list(check(P5EN, Pod(tmp_path).machine())) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus": 7}, "7 of 8 devices of nvidia.com/gpu"),
        ({"efa": 0}, "0 of 16 EFA devices"),
        ({"efa": 15}, "15 of 16 EFA devices"),
        ({"efa": 32}, "it is privileged"),
        ({"fi_info": Ran(None, "")}, "no fi_info"),
        ({"fi_info": Ran(61, "fi_getinfo: -61 (No data available)\n")}, "finds no provider efa (fi_getinfo: -61"),
        ({"fi_info": Ran(0, "domain: rdmap0s0-rdm")}, "libfabric sees 1 of 16"),
        ({"capabilities": "0"}, "only 8388608 bytes may be locked"),
        ({"env": {"FI_EFA_USE_HUGE_PAGE": "1"}, "huge_pages": 0}, "no free huge pages"),
        ({"packages": {}}, "no package vllm"),
        ({"packages": {"vllm": "0.32.0", "nixl": "1.5.0"}}, "the image has vLLM 0.32.0, engine.version says 0.33.0"),
        ({"packages": {"vllm": "0.33.0"}}, "no package nixl"),
        ({"packages": {"vllm": "0.33.0", "nixl-cu13": "1.4.1"}}, "the image has NIXL 1.4.1, and at least 1.5.0"),
        ({"nixl_probe": Ran(1, "Traceback\nnixlNotFoundError: NIXL_ERR_NOT_FOUND")}, "backend LIBFABRIC (nixlNotFound"),
        ({"nixl_probe": Ran(None, "no answer within 120 s")}, "backend LIBFABRIC (no answer"),
        ({"nixl_probe": Ran(0, "Discovered 2 tcp devices (TCP fallback)")}, "over TCP, not EFA"),
        ({"model": False}, "no /models/config.json"),
    ],
)
def test_what_is_wrong_is_said_alone(tmp_path: Path, change: dict[str, object], words: str) -> None:
    problems = list(check(P5EN, replace(Pod(tmp_path), **change).machine()))  # type: ignore[arg-type] # fields by name
    assert len(problems) == 1
    assert words in problems[0]


@pytest.mark.parametrize("change", [{"locked": "unlimited"}, {"locked": str(64 * 1024**3)}])
def test_memory_that_may_be_locked_needs_no_capability(tmp_path: Path, change: dict[str, str]) -> None:
    assert list(check(P5EN, replace(Pod(tmp_path, capabilities="0"), **change).machine())) == []


def test_the_nixl_of_an_old_vllm_is_too_old_for_efa_all_the_same(tmp_path: Path) -> None:
    old = {"vllm": "0.26.0", "nixl": "1.3.1"}
    machine = Pod(tmp_path, packages=old).machine()
    wanted = replace(P5EN, version="0.26.0")
    assert [problem for problem in check(wanted, machine) if "at least 1.3.2" in problem]
    assert list(check(replace(wanted, efa=0, backend=Backend.UCX), machine)) == []


def test_an_engine_on_cpu_needs_no_devices(tmp_path: Path) -> None:
    assert list(check(CPU, Pod(tmp_path, gpus=0, efa=0, capabilities="0", model=False).machine())) == []


def test_the_last_line_names_every_problem_and_the_status_is_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--accelerator", "nvidia", "--devices", "8", "--efa", "16", "--backend", "LIBFABRIC"]
    arguments += ["--version", "0.33.0", "--model", "/models"]
    pod = Pod(tmp_path, gpus=0, model=False)
    assert main(arguments, pod.machine()) == 1
    last = capsys.readouterr().err.splitlines()
    assert len(last) == 1
    assert last[0].startswith("preflight: 0 of 8 devices")
    assert "config.json" in last[0]
    assert main(arguments, replace(Machine(tmp_path, {"DUPLEX_PREFLIGHT": "warn"}, pod.answer, pod.packages.get))) == 0  # type: ignore[arg-type] # never None here
    assert "0 of 8 devices" in capsys.readouterr().err


@pytest.mark.parametrize(("gpus", "verdict"), [(8, PREFLIGHT_PASSED), (7, "preflight: 7 of 8 devices")])
def test_the_verdict_is_left_where_the_kubelet_takes_it_from(tmp_path: Path, gpus: int, verdict: str) -> None:
    arguments = ["--accelerator", "nvidia", "--devices", "8", "--efa", "16", "--backend", "LIBFABRIC"]
    arguments += ["--version", "0.33.0", "--model", "/models"]
    machine = Pod(tmp_path, gpus=gpus).machine()
    main(arguments, machine)
    assert not (tmp_path / "dev/termination-log").exists(), "outside a pod nothing is written"
    (tmp_path / "dev/termination-log").touch()
    main(arguments, machine)
    assert (tmp_path / "dev/termination-log").read_text().startswith(verdict)


def test_programs_really_run() -> None:
    assert run("sh", "-c", "echo out; echo err >&2; exit 3") == Ran(3, "out\nerr\n")
    assert run("no-such-program").status is None
    assert package_version("pytest")
    assert package_version("no-such-package") == ""
