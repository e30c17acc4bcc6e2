"""The memory of a real router process while one side is far slower than the other: it holds the fast one back.

Judged by sizes, never by time: a sender that is held back stops by itself, however slow the machine.
"""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .handles import handle_fields
from .raw_site import STREAM_HEAD, event, whole
from .rig import free_port

STREAM_BYTES = 1 << 30
BODY_BYTES = 48 << 20
HELD_BACK_SECONDS = 1.0
READS = 400
READ_BYTES = 1000
MOST_STREAM_KILOBYTES = 16 << 10
"""A stream's buffers on the way, and what the router first allocates: much less than the stream's 1 GB."""

BUFFER_BYTES = 64 << 10


@dataclass
class Sockets:
    """Listening sockets of two engines and the threads that serve them; `sent` and `got`: bytes so far."""

    listeners: dict[str, socket.socket]
    sent: int = 0
    got: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def fleet(self) -> dict[str, object]:
        urls = {role: [f"http://127.0.0.1:{each.getsockname()[1]}"] for role, each in self.listeners.items()}
        return {
            "model": {"name": "m"},
            "revisions": [{"name": "r1", "engines": urls}],
            "canary": {"enabled": False},
        }

    def serve(self, role: str) -> None:
        """Take one connection after the other, for ever; only turns get more than a refusal."""
        answer = self._prefill if role == "prefill" else self._decode
        while not self.over.is_set():
            try:
                connection, _ = self.listeners[role].accept()
            except OSError:  # closed: the test is over
                return
            with connection, contextlib.suppress(OSError):
                head, _, body = self._head(connection).partition(b"\r\n\r\n")
                if head.startswith(b"POST /v1/chat/completions"):
                    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                    answer(connection, length, body)
                else:
                    connection.sendall(whole({}, "404 Not Found"))

    @staticmethod
    def _head(connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(4096) or b"\r\n\r\n"
        return data

    def _prefill(self, connection: socket.socket, length: int, body: bytes) -> None:
        """Answer at once; of a large body read a little at a time, and then no more."""
        self.got = len(body)
        if length < BODY_BYTES // 2:
            params = {**handle_fields(), "do_remote_prefill": True}
            connection.sendall(whole({"choices": [{"finish_reason": "length"}], "kv_transfer_params": params}))
            return
        for _ in range(READS):
            self.got += len(connection.recv(READ_BYTES))
            time.sleep(0.001)
        self.over.wait(60)

    def _decode(self, connection: socket.socket, _length: int, _body: bytes) -> None:
        """Stream 1 GB, as fast as it is taken."""
        piece = event({"choices": [{"index": 0, "delta": {"content": "x" * 4000}}], "kv_transfer_params": None})
        connection.sendall(STREAM_HEAD)
        while self.sent < STREAM_BYTES:
            connection.sendall(piece)
            self.sent += len(piece)


@dataclass
class Process:
    """The router, and its port."""

    process: subprocess.Popen[bytes]
    port: int
    sockets: Sockets

    def kilobytes(self) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError("the router is gone")

    def connect(self) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        client.connect(("127.0.0.1", self.port))
        client.settimeout(60)
        return client

    def ask(self, client: socket.socket, body: bytes) -> None:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body))
        client.sendall(body)


def listening() -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    listener.bind(("127.0.0.1", 0))
    listener.listen(8)
    return listener


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Process]:
    sockets = Sockets({"prefill": listening(), "decode": listening()})
    for role in sockets.listeners:
        threading.Thread(target=sockets.serve, args=(role,), daemon=True).start()
    (tmp_path / "fleet.json").write_text(json.dumps(sockets.fleet))
    port = free_port()
    command = [str(Path(sys.executable).with_name("duplex-router")), "--fleet", str(tmp_path / "fleet.json")]
    command += ["--host", "127.0.0.1", "--port", str(port), "--admin-port", str(free_port())]
    process = subprocess.Popen([*command, "--drain-seconds", "0", "--log-level", "ERROR"])
    try:
        until_served(port, process)
        yield Process(process, port, sockets)
    finally:
        sockets.over.set()
        process.kill()
        process.wait()
        for listener in sockets.listeners.values():
            listener.close()


def until_served(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 60) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            if client.recv(100).startswith(b"HTTP/1.1 200"):
                return
        time.sleep(0.05)
    raise AssertionError("the router did not start")


def test_a_stream_of_a_gigabyte_to_a_reader_of_a_kilobyte_at_a_time_leaves_memory_flat(router: Process) -> None:
    before = router.kilobytes()
    with router.connect() as client:
        router.ask(client, b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}')
        last, most = -1, 0
        for _ in range(READS):
            assert client.recv(READ_BYTES)
            time.sleep(0.002)
        while router.sockets.sent != last:
            last = router.sockets.sent
            time.sleep(HELD_BACK_SECONDS)
            most = max(most, router.kilobytes() - before)
    assert last > 0
    assert last < STREAM_BYTES, "the engine was not held back"
    assert most < MOST_STREAM_KILOBYTES, f"the router grew by {most} kB"


def test_a_large_body_to_an_engine_that_reads_a_kilobyte_at_a_time_is_kept_but_twice(router: Process) -> None:
    """Once as it came, whose parts the turn refers to, and once as what both legs share."""
    before = router.kilobytes()
    with router.connect() as client:
        text = b"x" * BODY_BYTES
        router.ask(client, b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text)
        last, kept = -1, 0
        while router.sockets.got != last or not last:
            last = router.sockets.got
            time.sleep(HELD_BACK_SECONDS)
            kept = router.kilobytes() - before
    assert READS * 100 < last < BODY_BYTES // 4, "the engine reads slowly"
    assert kept < 2.2 * BODY_BYTES / 1024, f"the router keeps {kept} kB for a body of {BODY_BYTES >> 10} kB"
