"""Simulator processes on loopback, and the legs of a turn, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from duplex_connector.config import TransferSettings, kv_transfer_argument
from duplex_connector.contract import Backend, ConnectorKind, Role

FIRST = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def transfer(
    role: Role, kind: ConnectorKind, *, bidirectional: bool = True, ttl: int = 480, threshold: int = 64, **extra: Any
) -> dict[str, Any]:
    settings = TransferSettings(
        connector=kind,
        backend=Backend.UCX,
        buffer_device="cpu",
        role_is_both=True,
        lease_seconds=30,
        bidirectional=bidirectional,
        ttl_seconds=ttl,
        threshold_tokens=threshold,
    )
    return {**json.loads(kv_transfer_argument(role, settings)), **extra}


@dataclass
class Server:
    """One simulator process."""

    process: subprocess.Popen[bytes]
    url: str

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)


def launch(*flags: str, config: dict[str, Any] | None = None, side_port: int | None = None) -> Server:
    port = free_port()
    command = [sys.executable, "-m", "duplex_simulator", "serve", "model", "--port", str(port)]
    command += ["--enable-prompt-tokens-details", *flags]
    if config is not None:
        command += ["--kv-transfer-config", json.dumps(config)]
    env = {
        **os.environ,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port or free_port()),
    }
    return Server(subprocess.Popen(command, env=env), f"http://127.0.0.1:{port}")


async def ready(servers: Sequence[Server], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    async with aiohttp.ClientSession() as session:
        for server in servers:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(server.url + "/health") as answer:
                        if answer.status == 200:
                            break
                assert server.process.poll() is None, "the simulator ended before it was ready"
                assert time.monotonic() < deadline, "the simulator is not ready in time"
                time.sleep(0.02)  # noqa: ASYNC251 - nothing else runs in this loop


@contextlib.contextmanager
def stopping(servers: Sequence[Server]) -> Iterator[None]:
    try:
        yield
    finally:
        for server in servers:
            server.stop()
