"""A router between a client of raw bytes and two fake engines that answer what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from .handles import handle_fields
from .rig import Router, router

OK_CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
Handler = Callable[[dict[str, Any], asyncio.StreamWriter], Any]


ASKED_BY_ITSELF = frozenset({"/metrics", "/v1/models"})
"""What a router asks engines now and then, whatever clients do: no test's handler shall take it for a client's."""


class FakeEngine:
    """An engine of a few lines that answers what the test says, and counts what it got."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[bytes, bytes], dict[str, Any]]] = []
        self.connections = 0
        self.handler: Handler = default_answer
        self.port = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.tasks.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.sleep(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.answer(reader, writer)
        finally:
            writer.transport.abort()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head[:-4].split(b"\r\n")
                headers = {name: value for name, _, value in (line.partition(b": ") for line in lines)}
                body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
                fields = json.loads(body) if body else {}
                path = first.split(b" ")[1].decode()
                self.requests.append((path, headers, fields))
                if path in ASKED_BY_ITSELF:
                    writer.write(whole({"error": {}}, "404 Not Found"))
                else:
                    await self.handler(fields, writer)
                await writer.drain()


def whole(body: dict[str, Any], status: str = "200 OK") -> bytes:
    raw = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(value: Any) -> bytes:
    data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream_of(text: str) -> bytes:
    last = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}
    return b"".join(
        [
            STREAM_HEAD,
            event({"choices": [{"index": 0, "delta": {"content": text}}], "kv_transfer_params": None}),
            event({**last, "kv_transfer_params": handle_fields()}),
            event(b"[DONE]"),
            b"0\r\n\r\n",
        ]
    )


async def default_answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    params = body.get("kv_transfer_params") or {}
    if body.get("model") == "duplex-lease":
        writer.write(whole({"error": {}}, "404 Not Found"))
    elif params.get("do_remote_decode"):
        hand_off = {"do_remote_prefill": True, "remote_request_id": "p"}
        usage = {"prompt_tokens": 9}
        writer.write(whole({"choices": [{"finish_reason": "length"}], "usage": usage, "kv_transfer_params": hand_off}))
    elif body.get("stream"):
        writer.write(stream_of("hello"))
    else:
        message = {"role": "assistant", "content": "hello"}
        writer.write(whole({"choices": [{"message": message}], "kv_transfer_params": handle_fields()}))


class Site:
    """A router before fake engines."""

    def __init__(self, under_test: Router, prefill: FakeEngine, decode: FakeEngine) -> None:
        self.router, self.prefill, self.decode = under_test, prefill, decode

    @property
    def touched(self) -> int:
        """How many requests of clients the engines got, without what the router itself asks now and then."""
        requests = [*self.prefill.requests, *self.decode.requests]
        return len([each for each in requests if each[0] not in ASKED_BY_ITSELF])

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.router.service.port)

    async def exchange(self, wire: bytes) -> bytes:
        """Send bytes, say that no more come, and return all that comes back."""
        reader, writer = await self.open()
        writer.write(wire)
        data = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return data


@contextlib.asynccontextmanager
async def site(tmp_path: Path, *, engine_tls: ssl.SSLContext | None = None, **more: Any) -> AsyncIterator[Site]:
    engines = FakeEngine(), FakeEngine()
    servers = []
    for engine in engines:
        server = await asyncio.start_server(engine.accept, "127.0.0.1", 0, ssl=engine_tls)
        engine.port = server.sockets[0].getsockname()[1]
        servers.append(server)
    scheme = "http" if engine_tls is None else "https"
    urls = {
        "prefill": [f"{scheme}://127.0.0.1:{engines[0].port}"],
        "decode": [f"{scheme}://127.0.0.1:{engines[1].port}"],
    }
    document = {
        "model": {"name": "m"},
        "revisions": [{"name": "r", "engines": urls}],
        "canary": {"enabled": False},
    }
    try:
        async with router(tmp_path, document, **more) as under_test:
            await asyncio.sleep(0.05)  # the first scrape
            for engine in engines:
                engine.requests.clear()
            yield Site(under_test, *engines)
    finally:
        for server in servers:
            server.close()
        for engine in engines:
            await engine.close()


def post(body: Any = OK_CHAT, path: str = "/v1/chat/completions", *headers: str, close: bool = True) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(raw)}", *headers]
    if close:
        lines.append("connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """Read one answer of a connection that goes on."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    body = b""
    if b"transfer-encoding: chunked" in head:
        while not body.endswith(b"0\r\n\r\n"):
            body += await asyncio.wait_for(reader.readuntil(b"\r\n"), 20)
    else:
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        body = await asyncio.wait_for(reader.readexactly(int(length or b"0")), 20)
    return head + body


def parts(answer: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    return int(first.split(b" ")[1]), dict(line.split(b": ", 1) for line in lines), body
