"""Real vLLM on CPU as a provider of engines: servers on loopback that move KV with the real NixlConnector.

A server takes 1.4 to 2.9 GiB and half a minute of two idle cores to start, so one set runs at a time, and the plain
server stays for the next variant where it would be the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from duplex_connector.contract import ConnectorKind, Env, Role
from duplex_connector.install import install
from duplex_lab.engine import Engine, ensure
from duplex_lab.progress import Progress

from .simulator import free_port, transfer_config
from .turns import NoAnswerError, request
from .variants import ADAPTER, MODEL, Facts, Family, Running, Variant

_HOST: Final = "127.0.0.1"
_BLOCK_SIZE: Final = 32
_SMALL_BLOCKS: Final = 48
_START_SECONDS: Final = 900.0
_STOP_SECONDS: Final = 20.0

FLAGS: Final = (
    "--dtype",
    "float32",  # a pair then agrees with a single server to the token
    "--enforce-eager",
    "--max-num-seqs",
    "4",
    "--seed",
    "0",
    "--block-size",
    str(_BLOCK_SIZE),
    "--enable-prompt-tokens-details",
)
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # Without it a read from a peer that is cut off waits for minutes.
    "UCX_TCP_USER_TIMEOUT": "5s",
}
"""What small offline engines on CPU need."""


class StartError(Exception):
    """A server did not come up; the text holds the end of its log."""


@dataclass
class Server:
    """One vLLM server: its API process, engine core and worker are one process group."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def is_healthy(self) -> bool:
        """Return whether it serves; raises StartError where it has ended."""
        if self.process.poll() is not None:
            raise StartError(f"{self.name} ended; its log {self.log} ends:\n{self._tail()}")
        try:
            return request(self.url, "/health", seconds=5).status == 200  # noqa: PLR2004 - HTTP OK
        except NoAnswerError:
            return False

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def await_health(self) -> None:
        """Return when it serves; raises StartError."""
        deadline = time.monotonic() + _START_SECONDS
        while not self.is_healthy():
            if time.monotonic() > deadline:
                raise StartError(f"{self.name} does not serve after {_START_SECONDS:.0f} s:\n{self._tail()}")
            time.sleep(0.5)

    def signal(self, number: int) -> None:
        """Send a signal to the whole group, if it still runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """End it: politely, then by force."""
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()


@dataclass
class RealPair:
    """One variant's prefill and decode engines, beside a plain one that others may use after them."""

    servers: dict[Role, Server]
    prefill: str
    decode: str
    plain: str
    facts: Facts

    def kill(self, role: Role) -> None:
        """End one engine without warning."""
        self.servers[role].signal(signal.SIGKILL)
        self.servers[role].process.wait()

    def close(self) -> None:
        """End both."""
        for server in self.servers.values():
            server.signal(signal.SIGTERM)
        for server in self.servers.values():
            server.stop()


class RealEngines:
    """Starts real servers; `logs` gets a file per server. DUPLEX_ENGINE_OVERLAY=1 runs vLLM 0.33.0's Python code."""

    name = "vllm"

    def __init__(self, logs: Path) -> None:
        self._logs = logs / "vllm"
        self._package = self._logs / "connector"
        self._engine: Engine | None = None
        self._plain: tuple[list[str], Server] | None = None

    def __enter__(self) -> Self:
        # The copy that an init container makes, so that engines of one run have one connector whatever is edited.
        self._package.mkdir(parents=True, exist_ok=True)
        install(self._package)
        return self

    def __exit__(self, *_: object) -> None:
        if self._plain is not None:
            self._plain[1].stop()

    @property
    def engine(self) -> Engine:
        """Return the environment, made at the first use."""
        if self._engine is None:
            self._engine = ensure(Progress(), overlay=os.environ.get("DUPLEX_ENGINE_OVERLAY") == "1")
        return self._engine

    def start(self, variant: Variant) -> Running:
        """Return the variant's engines, ready."""
        plain = self._plain_server(variant)
        servers = {role: self._launch(variant, role) for role in Role}
        try:
            for server in (plain, *servers.values()):
                server.await_health()
        except BaseException:
            for server in servers.values():
                server.stop()
            raise
        return RealPair(servers, servers[Role.PREFILL].url, servers[Role.DECODE].url, plain.url, self._facts(plain.url))

    @staticmethod
    def _facts(plain: str) -> Facts:
        return Facts(
            block_size=_BLOCK_SIZE,
            tokens=range(300, 4096),
            marks=False,
            answer_seconds=180.0,
            hang_seconds=30.0,
            streams_params=True,
            small_prefill_blocks=_SMALL_BLOCKS,
            version=str(request(plain, "/version").body["version"]),
        )

    def _plain_server(self, variant: Variant) -> Server:
        flags = self._model_flags(variant)
        if self._plain is not None and self._plain[0] == flags and self._plain[1].process.poll() is None:
            return self._plain[1]
        if self._plain is not None:
            self._plain[1].stop()
        self._plain = flags, self._spawn("plain", flags, {})
        return self._plain[1]

    def _model_flags(self, variant: Variant) -> list[str]:
        models = self.engine.models
        flags = [str(models / ("window" if variant.family is Family.WINDOW else "tiny")), *FLAGS]
        flags += ["--served-model-name", MODEL]
        if variant.adapters:
            flags += ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={models / 'adapter'}"]
        return flags

    def _launch(self, variant: Variant, role: Role) -> Server:
        flags = [*self._model_flags(variant), "--kv-transfer-config", json.dumps(transfer_config(variant, role))]
        if role is Role.PREFILL and not variant.prefill_caching:
            flags.append("--no-enable-prefix-caching")
        if role is Role.PREFILL and variant.small_prefill:
            flags += ["--num-gpu-blocks-override", str(_SMALL_BLOCKS), "--max-num-batched-tokens", "128"]
            # Two prompts then take turns, as they do on the simulator.
            flags += ["--long-prefill-token-threshold", "64"]
            # Admit a load that has room although the rest of its prompt has none yet.
            flags += ["--max-model-len", "1400", "--no-scheduler-reserve-full-isl"]
        else:
            flags += ["--max-model-len", "4096"]
        env: dict[str, Any] = {Env.SIDE_CHANNEL_HOST: _HOST, Env.SIDE_CHANNEL_PORT: str(free_port())}
        guarded = variant.connector is ConnectorKind.GUARDED
        return self._spawn(f"{variant}-{role.value}", flags, env, source=self._package if guarded else None)

    def _spawn(self, name: str, flags: list[str], env: dict[str, str], *, source: Path | None = None) -> Server:
        port = free_port()
        command = [str(self.engine.python), "-m", "vllm.entrypoints.cli.main", "serve", *flags]
        command += ["--host", _HOST, "--port", str(port)]
        paths = [str(path) for path in (self.engine.overlay, source) if path is not None]
        full = {**os.environ, **ENVIRONMENT, **env, Env.HOST_IP: _HOST, Env.PYTHON_PATH: os.pathsep.join(paths)}
        log = self._logs / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, env=full, stdout=out, stderr=out, start_new_session=True)
        return Server(name, f"http://{_HOST}:{port}", process, log)
