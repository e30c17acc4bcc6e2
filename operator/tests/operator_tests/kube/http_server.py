"""A scripted HTTP server on loopback: what the client sends is recorded, what it gets is written down in advance."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web


@dataclass
class Answer:
    """One HTTP answer. ``chunks`` are sent one by one; ``hang`` keeps the stream open after them."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Sequence[bytes] | None = None
    hang: bool = False


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any


class ScriptedServer:
    """Answers requests from ``script`` in order; with the script used up, answers 500."""

    def __init__(self) -> None:
        self.script: deque[Answer] = deque()
        self.requests: list[Request] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.text()
        body = json.loads(raw) if raw else None
        self.requests.append(Request(request.method, request.path, dict(request.query), request.content_type, body))
        answer = self.script.popleft() if self.script else Answer(500, {"message": "script used up"})
        if answer.chunks is None:
            return web.json_response(answer.body, status=answer.status, headers=answer.headers)
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        await response.prepare(request)
        for chunk in answer.chunks:
            await response.write(chunk)
        if answer.hang:
            await asyncio.sleep(60)
        return response


@asynccontextmanager
async def scripted_server() -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", scripted.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    scripted.url = f"http://{host}:{port}"
    try:
        yield scripted
    finally:
        await runner.cleanup()


def write_kubeconfig(path: Path, url: str) -> Path:
    """Write a kubeconfig for ``url`` without credentials."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "scripted",
        "clusters": [{"name": "scripted", "cluster": {"server": url}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "scripted", "context": {"cluster": "scripted", "user": "nobody"}}],
    }
    path.write_text(json.dumps(config))
    return path
