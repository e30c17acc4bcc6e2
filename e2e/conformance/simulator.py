"""The simulator as a provider of engines: processes on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from duplex_connector.config import TransferSettings, kv_transfer_config
from duplex_connector.contract import Backend, Env, Role

from .turns import NoAnswerError, request
from .variants import ADAPTER, MODEL, Facts, Family, Running, Variant

_HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 300.0
_BLOCK_SIZE: Final = 32
_WINDOW: Final = 128
_SMALL_BLOCKS: Final = 48
_PLAIN: Final = "plain"


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def transfer_config(variant: Variant, role: Role) -> dict[str, Any]:
    """Return the role's transfer config by the project's own builder, with what the variant breaks on purpose."""
    settings = TransferSettings(
        connector=variant.connector,
        backend=Backend.UCX,
        buffer_device="cpu",
        role_is_both=variant.role_is_both,
        lease_seconds=30,
        bidirectional=True,
        ttl_seconds=variant.ttl_seconds,
        threshold_tokens=variant.threshold_tokens,
    )
    config = kv_transfer_config(role, settings)
    if role is Role.PREFILL and not variant.prefill_pulls:
        config["kv_connector_extra_config"]["bidirectional_kv_xfer"] = False
    if role is Role.PREFILL and variant.recompute is not None:
        config["kv_load_failure_policy"] = "recompute" if variant.recompute else "fail"
    return config


def flags(variant: Variant, role: Role | None) -> list[str]:
    """Return vLLM's flags of one engine; None is the plain one."""
    out = ["--served-model-name", MODEL, "--block-size", str(_BLOCK_SIZE), "--enable-prompt-tokens-details"]
    if variant.family is Family.WINDOW:
        out += ["--sim-groups", f"full,window:{_WINDOW}"]
    if variant.lossy:
        out += ["--sim-tokenizer", "bpe-lossy"]
    if variant.adapters:
        out += ["--enable-lora", "--lora-modules", f"{ADAPTER}=/adapters/a"]
    if role is Role.PREFILL and not variant.prefill_caching:
        out.append("--no-enable-prefix-caching")
    if role is Role.PREFILL and variant.small_prefill:
        out += ["--sim-blocks", str(_SMALL_BLOCKS), "--max-num-batched-tokens", "64", "--max-model-len", "1400"]
        out += ["--sim-profile", "qwen3-32b-p5en", "--sim-time-scale", "3"]
    if role is not None:
        out += ["--kv-transfer-config", json.dumps(transfer_config(variant, role))]
    return out


@dataclass
class SimulatedEngines:
    """One variant's processes."""

    processes: dict[Role, subprocess.Popen[bytes]]
    prefill: str
    decode: str
    plain: str

    @property
    def facts(self) -> Facts:
        """Return the facts of every simulated engine."""
        return Facts(
            block_size=_BLOCK_SIZE,
            tokens=range(300, 4096),
            marks=True,
            answer_seconds=30.0,
            hang_seconds=2.0,
            small_prefill_blocks=_SMALL_BLOCKS,
            version="0.33.0",
        )

    def kill(self, role: Role) -> None:
        """End one engine."""
        self.processes[role].kill()
        self.processes[role].wait()

    def close(self) -> None:
        """End them all."""
        for process in self.processes.values():
            process.kill()
            process.wait()


class Simulator:
    """Starts simulator processes; `logs` gets a file per engine."""

    name = "simulator"

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._plain: tuple[list[str], subprocess.Popen[bytes], str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._plain is not None:
            self._plain[1].kill()
            self._plain[1].wait()

    def start(self, variant: Variant) -> Running:
        """Return the variant's engines, ready."""
        self._logs.mkdir(parents=True, exist_ok=True)
        plain = self._plain_url(variant)
        ports = {role: free_port() for role in Role}
        started = {role: self._launch(f"{variant}-{role}", flags(variant, role), ports[role]) for role in Role}
        urls = {role: f"http://{_HOST}:{port}" for role, port in ports.items()}
        engines = SimulatedEngines(started, urls[Role.PREFILL], urls[Role.DECODE], plain)
        try:
            for role, url in urls.items():
                self._await(role, url, started[role])
        except BaseException:
            engines.close()
            raise
        return engines

    def _plain_url(self, variant: Variant) -> str:
        """Return the plain engine, kept for the next variant where that would start the same."""
        wanted = flags(variant, None)
        if self._plain is None or self._plain[0] != wanted:
            self.__exit__()
            port = free_port()
            process, url = self._launch(_PLAIN, wanted, port), f"http://{_HOST}:{port}"
            self._plain = wanted, process, url
            self._await(_PLAIN, url, process)
        return self._plain[2]

    def _launch(self, name: str, engine_flags: list[str], port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "duplex_simulator", "serve", "model", "--host", _HOST, "--port", str(port)]
        env = {**os.environ, Env.SIDE_CHANNEL_HOST: _HOST, Env.SIDE_CHANNEL_PORT: str(free_port())}
        with (self._logs / f"{name}.log").open("wb") as log:
            return subprocess.Popen([*command, *engine_flags], env=env, stdout=log, stderr=log)

    @staticmethod
    def _await(name: str, url: str, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            try:
                request(url, "/health", seconds=2)
            except NoAnswerError:
                if process.poll() is not None:
                    raise RuntimeError(f"the simulated {name} engine ended before it was ready; see its log") from None
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"the simulated {name} engine is not ready after {_START_SECONDS} s")
