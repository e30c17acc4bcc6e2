"""Start real vLLM servers on loopback: a prefill and a decode engine that exchange KV, and a plain one to compare with.

Each server takes 1.4 to 2.9 GiB and half a minute of two cores to start, so one set runs at a time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from duplex_connector.config import TransferSettings, kv_transfer_argument
from duplex_connector.contract import Backend, ConnectorKind, Env, Role

HOST: Final = "127.0.0.1"
SERVED_NAME: Final = "m"
BLOCK_SIZE: Final = 32
START_SECONDS: Final = 600.0
STOP_SECONDS: Final = 15.0

ENGINE_FLAGS: Final = (
    "--dtype",
    "float32",  # P and D then agree with a single server to the token
    "--enforce-eager",
    "--max-num-seqs",
    "4",
    "--max-model-len",
    "8192",
    "--seed",
    "0",
)

ENGINE_ENV: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "UCX_TCP_USER_TIMEOUT": "5s",
}
"""What vLLM on CPU needs to run small and offline; the UCX timeout ends a read from a peer that is cut off."""


class StartError(Exception):
    """A server did not come up; the text holds the end of its log."""


@dataclass(frozen=True)
class Plan:
    """Which servers to start and how.

    `connector`: of the prefill and decode engine. `flags`: more flags of all servers, `prefill_flags` of prefill alone.
    `ttl_seconds`, `threshold_tokens`: only stock engines are given them. `policy`: vLLM's kv_load_failure_policy where
    another than the builder's is to be shown. `plain`: whether a server without KV transfer runs beside them.
    """

    connector: ConnectorKind
    model: Path
    python: Path
    source: Path | None = None
    flags: Sequence[str] = ()
    prefill_flags: Sequence[str] = ()
    decode_flags: Sequence[str] = ()
    role_is_both: bool = True
    bidirectional: Mapping[Role, bool] = field(default_factory=lambda: {Role.PREFILL: True, Role.DECODE: True})
    ttl_seconds: int = 60
    threshold_tokens: int = 64
    policy: str | None = None
    plain: bool = True


@dataclass(frozen=True)
class Urls:
    """Where the servers listen; `plain` is empty where none runs."""

    prefill: str
    decode: str
    plain: str


@dataclass
class _Server:
    name: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path


def _transfer(plan: Plan, role: Role) -> str:
    settings = TransferSettings(
        connector=plan.connector,
        backend=Backend.UCX,
        buffer_device="cpu",
        role_is_both=plan.role_is_both,
        lease_seconds=30,
        bidirectional=plan.bidirectional[role],
        ttl_seconds=plan.ttl_seconds,
        threshold_tokens=plan.threshold_tokens,
    )
    argument = kv_transfer_argument(role, settings)
    if not plan.bidirectional[role]:
        # A guarded engine always has the flag by the builder; a check shows what happens where it has not.
        argument = argument.replace('"bidirectional_kv_xfer":true', '"bidirectional_kv_xfer":false')
    if plan.policy is not None:
        for rendered in ("fail", "recompute"):
            argument = argument.replace(
                f'"kv_load_failure_policy":"{rendered}"', f'"kv_load_failure_policy":"{plan.policy}"'
            )
    return argument


def _start(plan: Plan, name: str, port: int, logs: Path, role: Role | None) -> _Server:
    command = [str(plan.python), "-m", "vllm.entrypoints.cli.main", "serve", str(plan.model)]
    command += ["--host", HOST, "--port", str(port), "--served-model-name", SERVED_NAME]
    command += ["--block-size", str(BLOCK_SIZE), "--enable-prompt-tokens-details", *ENGINE_FLAGS, *plan.flags]
    env = {**os.environ, **ENGINE_ENV, Env.HOST_IP: HOST}
    if role is not None:
        command += ["--kv-transfer-config", _transfer(plan, role)]
        command += plan.prefill_flags if role is Role.PREFILL else plan.decode_flags
        env |= {Env.SIDE_CHANNEL_HOST: HOST, Env.SIDE_CHANNEL_PORT: str(port + 1000)}
        if plan.source is not None:
            env[Env.PYTHON_PATH] = os.pathsep.join(filter(None, (str(plan.source), env.get(Env.PYTHON_PATH))))
    log = logs / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    return _Server(name, f"http://{HOST}:{port}", process, log)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2):  # noqa: S310 - our own loopback server
            return True
    except (urllib.error.URLError, OSError):
        return False


def _await(servers: Sequence[_Server]) -> None:
    deadline = time.monotonic() + START_SECONDS
    waiting = list(servers)
    while waiting:
        for server in list(waiting):
            if server.process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(server.log.read_text(errors="replace").splitlines()[-30:])
                raise StartError(f"{server.name} did not start; its log {server.log} ends:\n{tail}")
            if _is_healthy(server.url):
                waiting.remove(server)
        time.sleep(0.5)


def _stop(servers: Sequence[_Server]) -> None:
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        alive = [server for server in servers if server.process.poll() is None]
        for server in alive:
            # A session of its own: the API process, the engine core and its worker.
            os.killpg(server.process.pid, signal_number)
        deadline = time.monotonic() + STOP_SECONDS
        for server in alive:
            try:
                server.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue


@contextmanager
def running(plan: Plan, logs: Path, *, first_port: int = 18100) -> Iterator[Urls]:
    """Run the plan's servers; `logs` gets one file per server."""
    logs.mkdir(parents=True, exist_ok=True)
    ports = {Role.PREFILL: first_port, Role.DECODE: first_port + 1}
    servers: list[_Server] = []
    try:
        servers += [_start(plan, role.value, port, logs, role) for role, port in ports.items()]
        if plan.plain:
            servers.append(_start(plan, "plain", first_port + 2, logs, None))
        _await(servers)
        urls = [server.url for server in servers]
        yield Urls(urls[0], urls[1], urls[2] if plan.plain else "")
    finally:
        _stop(servers)
