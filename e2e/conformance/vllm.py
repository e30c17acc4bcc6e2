"""Real vLLM on CPU as a provider of engines: servers on loopback that move KV with the real NixlConnector.

A server takes 1.4 to 2.9 GiB and half a minute of two idle cores to start, so one set runs at a time, and a server that
the next variant needs just so goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

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
_PLAIN: Final = "plain"
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

    def lives(self) -> bool:
        """Return whether it runs and serves."""
        return self.process.poll() is None and self._answers()

    def _answers(self) -> bool:
        try:
            return request(self.url, "/health", seconds=5).status == 200  # noqa: PLR2004 - HTTP OK
        except NoAnswerError:
            return False

    def is_healthy(self) -> bool:
        """Return whether it serves; raises StartError where it has ended."""
        if self.process.poll() is not None:
            raise StartError(f"{self.name} ended; its log {self.log} ends:\n{self._tail()}")
        return self._answers()

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
class RealSet:
    """One variant's engines."""

    servers: dict[str, Server]
    prefill: str
    decode: str
    plain: str
    facts: Facts

    def kill(self, role: Role) -> None:
        """End one engine without warning."""
        self.servers[role.value].signal(signal.SIGKILL)
        self.servers[role.value].process.wait()

    def close(self) -> None:
        """Do nothing: who started them knows which of them go on."""


class RealEngines:
    """Starts real servers; `logs` gets a file per server. DUPLEX_ENGINE_OVERLAY=1 runs vLLM 0.33.0's Python code."""

    name = "vllm"

    def __init__(self, logs: Path) -> None:
        self._logs = logs / "vllm"
        self._package = self._logs / f"connector-{os.getpid()}"
        self._engine: Engine | None = None
        self._running: dict[str, tuple[list[str], Server]] = {}

    def __enter__(self) -> Self:
        # The copy that an init container makes, so that engines of one run have one connector whatever is edited.
        self._package.mkdir(parents=True, exist_ok=True)
        install(self._package)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop(list(self._running))
        shutil.rmtree(self._package, ignore_errors=True)

    def _stop(self, names: list[str]) -> None:
        ended = [self._running.pop(name)[1] for name in names]
        for server in ended:
            server.signal(signal.SIGTERM)
        for server in ended:
            server.stop()

    @property
    def engine(self) -> Engine:
        """Return the environment, made at the first use."""
        if self._engine is None:
            self._engine = ensure(Progress(), overlay=os.environ.get("DUPLEX_ENGINE_OVERLAY") == "1")
        return self._engine

    def start(self, variant: Variant) -> Running:
        """Return the variant's engines, ready."""
        wanted = {role.value: self._role_flags(variant, role) for role in Role}
        wanted[_PLAIN] = self._model_flags(variant)
        stale = [name for name, (flags, server) in self._running.items() if flags != wanted[name] or not server.lives()]
        self._stop(stale)
        for name, flags in wanted.items():
            if name not in self._running:
                self._running[name] = flags, self._spawn(variant, name, flags)
        servers = {name: server for name, (_, server) in self._running.items()}
        for server in servers.values():
            server.await_health()
        urls = {name: server.url for name, server in servers.items()}
        facts = self._facts(urls[_PLAIN])
        return RealSet(servers, urls[Role.PREFILL.value], urls[Role.DECODE.value], urls[_PLAIN], facts)

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

    def _model_flags(self, variant: Variant) -> list[str]:
        models = self.engine.models
        name = "window" if variant.family is Family.WINDOW else "bpe" if variant.lossy else "tiny"
        flags = [str(models / name), *FLAGS]
        flags += ["--served-model-name", MODEL]
        if variant.adapters:
            flags += ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={models / 'adapter'}"]
        return flags

    def _role_flags(self, variant: Variant, role: Role) -> list[str]:
        flags = [*self._model_flags(variant), "--kv-transfer-config", json.dumps(transfer_config(variant, role))]
        if role is Role.PREFILL and not variant.prefill_caching:
            flags.append("--no-enable-prefix-caching")
        if role is Role.PREFILL and variant.small_prefill:
            flags += ["--num-gpu-blocks-override", str(_SMALL_BLOCKS), "--max-num-batched-tokens", "64"]
            # Admit a load that has room although the rest of its prompt has none yet.
            flags += ["--max-model-len", "1400", "--no-scheduler-reserve-full-isl"]
        else:
            flags += ["--max-model-len", "4096"]
        return flags

    def _spawn(self, variant: Variant, name: str, flags: list[str]) -> Server:
        port = free_port()
        command = [str(self.engine.python), "-m", "vllm.entrypoints.cli.main", "serve", *flags]
        command += ["--host", _HOST, "--port", str(port)]
        guarded = variant.connector is ConnectorKind.GUARDED
        paths = [str(path) for path in (self.engine.overlay, self._package if guarded else None) if path is not None]
        env = {**os.environ, **ENVIRONMENT, Env.HOST_IP: _HOST, Env.PYTHON_PATH: os.pathsep.join(paths)}
        env |= {Env.SIDE_CHANNEL_HOST: _HOST, Env.SIDE_CHANNEL_PORT: str(free_port())}
        log = self._logs / f"{variant}-{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
        return Server(log.stem, f"http://{_HOST}:{port}", process, log)
