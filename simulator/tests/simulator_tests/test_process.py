"""The process: it starts by its command line, drains on SIGTERM, and ends when its engine is dead."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from duplex_connector.contract import ConnectorKind, Env, Params
from duplex_connector.leaving import Look, look_at

from .nodes import COLD, transfer

ALONE = {Params.DO_REMOTE_PREFILL: False, Params.DO_REMOTE_DECODE: False}
START_SECONDS = 60.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def turn(self, **more: Any) -> dict[str, Any]:
        body = {"prompt": list(range(300, 400)), "max_tokens": 4, Params.FIELD: ALONE, **more}
        answer: dict[str, Any] = json.loads(self.ask("/v1/completions", body)[1])
        return answer


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[Server]:
    port = _free_port()
    command = [sys.executable, "-m", "duplex_simulator", "serve", "model", "--port", str(port), *flags]
    command += ["--kv-transfer-config", transfer(ConnectorKind.STOCK)]
    env = {**os.environ, Env.SIDE_CHANNEL_HOST: "127.0.0.1", Env.SIDE_CHANNEL_PORT: str(_free_port())}
    with subprocess.Popen(command, env=env) as process:
        server = Server(process, port)
        deadline = time.monotonic() + START_SECONDS
        try:
            while True:
                with contextlib.suppress(OSError):
                    if server.ask("/health")[0] == 200:
                        break
                assert process.poll() is None, "the simulator ended before it was ready"
                assert time.monotonic() < deadline, "the simulator is not ready in time"
                time.sleep(0.05)
            yield server
        finally:
            process.kill()


def test_a_drain_waits_for_holds_and_answers_new_requests_with_an_abort() -> None:
    with serving("--shutdown-timeout", "30") as server:
        held = server.turn(**{Params.FIELD: COLD})[Params.FIELD]
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        late = server.turn()
        assert (late["choices"][0]["finish_reason"], late[Params.FIELD]) == ("abort", None)
        assert server.ask("/health")[0] == 200
        assert server.process.poll() is None
        # Rejected at the holder itself, which then tells itself that the blocks may go.
        assert server.ask("/v1/completions", {"model": "other", "prompt": "x", Params.FIELD: held})[0] == 404
        assert server.process.wait(10) == 0


def test_the_hook_of_its_pod_waits_for_a_hold_that_nobody_has_read() -> None:
    with serving() as server:
        held = server.turn(**{Params.FIELD: COLD})[Params.FIELD]
        assert look_at(server.port) is Look.IN_USE
        assert server.ask("/v1/completions", {"model": "other", "prompt": "x", Params.FIELD: held})[0] == 404
        for _ in range(100):
            if look_at(server.port) is Look.QUIET:
                break
            time.sleep(0.1)
        assert look_at(server.port) is Look.QUIET
    assert look_at(server.port) is Look.GONE


def test_a_drain_ends_with_its_time() -> None:
    with serving("--shutdown-timeout", "1") as server:
        server.turn()
        server.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        assert server.process.wait(20) == 0
        assert time.monotonic() - started >= 0.9


def test_a_dead_engine_answers_500_and_503_and_ends_the_process() -> None:
    with serving("--no-enable-prefix-caching") as server:
        held = server.turn()[Params.FIELD]
        broken = {**held, Params.BLOCK_IDS: held[Params.BLOCK_IDS][0]}
        body = {"prompt": list(range(300, 600)), "max_tokens": 1, Params.FIELD: broken}
        status, text = server.ask("/v1/completions", body)
        assert (status, json.loads(text)["error"]["type"]) == (500, "InternalServerError")
        assert server.ask("/health")[0] == 503
        assert server.process.wait(20) == 1


@pytest.mark.parametrize("flags", [["--sim-blocks", "5"], ["--sim-groups", "none"]])
def test_what_cannot_be_served_ends_with_a_reason(flags: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "duplex_simulator", "serve", "model", *flags],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    assert b"duplex-simulator: " in ended.stderr
