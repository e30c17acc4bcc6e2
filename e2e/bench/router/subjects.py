"""The routers that are measured, each as one process tree on the router's CPU, and the engines behind them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from . import tools
from .machine import LOAD_CPU, ROUTER_CPU, BenchError, on_cpu, tree

PREFILL_PORT: Final = 18100
DECODE_PORT: Final = 18200
_READY_SECONDS: Final = 90.0
_STOP_SECONDS: Final = 20.0
_ASK: Final = b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":2,"stream":true}'

_NGINX: Final = """
daemon off; worker_processes 1; worker_rlimit_nofile 20000;
pid {folder}/nginx.pid; error_log {folder}/error.log warn;
events {{ worker_connections 10000; multi_accept on; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 4m;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 1000000000; keepalive_timeout 600s; tcp_nodelay on;
  upstream prefill {{ server 127.0.0.1:{prefill}; keepalive 1024; keepalive_requests 1000000000; }}
  upstream decode {{ server 127.0.0.1:{decode}; keepalive 2048; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 3600s;
    location /p/ {{ proxy_pass http://prefill/; }}
    location / {{ proxy_pass http://decode; }}
  }}
}}
"""

_FLEET: Final = {
    "model": {"name": "m", "blockSize": 16, "connector": "Guarded"},
    "policy": {"ttlSeconds": 480, "retentionPercent": 50},
    "canary": {"enabled": False},
    "revisions": [
        {
            "name": "r1",
            "engines": {
                "prefill": [f"http://127.0.0.1:{PREFILL_PORT}"],
                "decode": [f"http://127.0.0.1:{DECODE_PORT}"],
            },
        }
    ],
}


@dataclass(frozen=True)
class Subject:
    """A router's name, its command, and the port it listens on."""

    name: str
    command: list[str]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    admin_port: int = 0


def nginx(folder: Path) -> Subject:
    """Return nginx as a plain proxy: what one hop costs in C."""
    port = 18000
    (folder / "nginx").mkdir()
    configuration = folder / "nginx.conf"
    configuration.write_text(
        _NGINX.format(folder=folder / "nginx", prefill=PREFILL_PORT, decode=DECODE_PORT, port=port)
    )
    return Subject("nginx", [tools.nginx(), "-c", str(configuration)], port)


def duplex(folder: Path) -> Subject:
    """Return our router, as it ships, for guarded engines."""
    port, admin = 18001, 18901
    fleet = folder / "fleet.json"
    fleet.write_text(json.dumps(_FLEET))
    python = tools.router_python()
    code = "from duplex_router.cli import main; main()"
    options = ["--fleet", str(fleet), "--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin)]
    command = [python.program, "-c", code, *options, "--log-level", "WARNING"]
    return Subject("duplex", command, port, python.environment, admin)


def vllm_router(_: Path) -> Subject:
    """Return the vLLM project's router in Rust, which does not reuse."""
    port = 18002
    engines = [
        "--prefill",
        f"http://127.0.0.1:{PREFILL_PORT}",
        "--decode",
        f"http://127.0.0.1:{DECODE_PORT}",
    ]
    options = ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin", "--log-level", "warning"]
    command = [str(tools.vllm_router()), "--vllm-pd-disaggregation", *engines, *options]
    return Subject("vllm-router", [*command, "--prometheus-port", "18902"], port)


def vllm_example(_: Path) -> Subject:
    """Return vLLM's example proxy, the one that reuses."""
    port = 18003
    engines = ["--prefiller-host", "127.0.0.1", "--prefiller-port", str(PREFILL_PORT)]
    engines += ["--decoder-host", "127.0.0.1", "--decoder-port", str(DECODE_PORT)]
    command = [*tools.vllm_example(), "--host", "127.0.0.1", "--port", str(port), *engines]
    return Subject("vllm-example", command, port)


MAKERS: Final = {"nginx": nginx, "duplex": duplex, "vllm-router": vllm_router, "vllm-example": vllm_example}


class Running:
    """A subject under way."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.subject = subject
        self._log = folder / f"{subject.name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                on_cpu(ROUTER_CPU, subject.command),
                stdout=log,
                stderr=log,
                env={**os.environ, **subject.environment},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        """Wait until it answers a turn."""
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if _answers(self.subject.port):
                return self
            time.sleep(0.2)
        self.stop()
        raise BenchError(f"{self.subject.name} does not answer; it said:\n{self._log.read_text()[-2000:]}")

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, and what it started."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            for each in tree(self.process.pid):
                os.kill(each, signal.SIGKILL)
            self.process.wait()


def _answers(port: int) -> bool:
    address = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(address, data=_ASK, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=3) as answer:  # noqa: S310 - our own loopback address
            return b"[DONE]" in answer.read()
    except (urllib.error.URLError, OSError):
        return False


class Engines:
    """The fake prefill and decode engine."""

    def __init__(self) -> None:
        command = [str(tools.build("engines")), str(PREFILL_PORT), str(DECODE_PORT)]
        self._process = subprocess.Popen(on_cpu(LOAD_CPU, command))

    def __enter__(self) -> Self:
        """Wait until they answer."""
        for _ in range(100):
            try:
                self.stats()
            except OSError:
                time.sleep(0.05)
            else:
                return self
        raise BenchError("the fake engines do not answer")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    @staticmethod
    def stats() -> dict[str, int]:
        """Return their counts so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{PREFILL_PORT}/stats", timeout=5) as answer:
            counts: dict[str, int] = json.load(answer)
        return counts


def load(options: str, port: int, path: str = "") -> dict[str, Any]:
    """Run the load generator and return its results."""
    command = load_command(options, port, path)
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if ran.returncode or not ran.stdout.strip():
        raise BenchError(f"the load generator failed: {ran.stderr[-1000:]}")
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    if ran.stderr.strip():
        result["said"] = ran.stderr.strip()[-400:]
    return result


def load_command(options: str, port: int, path: str = "") -> list[str]:
    """Return the command of the load generator."""
    where = ["-p", str(port), *(("-P", path) if path else ())]
    return on_cpu(LOAD_CPU, [str(tools.build("load")), *where, *options.split()])
