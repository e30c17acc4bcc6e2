"""The admin port: `/healthz /readyz /metrics /stats /explain/<request id>`, over the same connections as the API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import msgspec

from duplex_router.http.connection import ClientConnection, Work
from duplex_router.http.settings import ServerSettings
from duplex_router.turn.core import JSON_TYPE
from duplex_router.wire.errors import RequestError
from duplex_router.wire.fields import Piece
from duplex_router.wire.heads import RequestHead

from .explain import explain
from .metrics import CONTENT_TYPE, render
from .state import AdminState
from .stats import stats

_EXPLAIN = b"/explain/"
_TEXT = (b"content-type", b"text/plain; charset=utf-8")


class AdminApp:
    """See `Application`."""

    def __init__(self, state: AdminState) -> None:
        self._state = state
        self.settings = ServerSettings(max_body_bytes=0)
        self.connections: set[ClientConnection] = set()
        self.clock: Callable[[], float] = state.core.clock

    def accepts(self, head: RequestHead) -> None:
        """See `Application`."""
        if head.method not in (b"GET", b"HEAD"):
            raise RequestError(HTTPStatus.METHOD_NOT_ALLOWED, "Use GET here.", headers=((b"allow", b"GET, HEAD"),))

    def serve(self, head: RequestHead, body: Piece, client: ClientConnection) -> Work | None:  # noqa: ARG002 - none here
        """See `Application`."""
        state = self._state
        if head.path == b"/healthz":
            client.respond(HTTPStatus.OK, [_TEXT], b"ok\n")
        elif head.path == b"/readyz":
            # Ready means: has a fleet document and takes requests. Engines may be absent: 503s are then the truth.
            ready = state.core.fleet.document is not None and not state.draining
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            client.respond(status, [_TEXT], b"ok\n" if ready else b"no fleet document, or draining\n")
        elif head.path == b"/metrics":
            client.respond(HTTPStatus.OK, [(b"content-type", CONTENT_TYPE)], render(state).encode())
        elif head.path == b"/stats":
            client.respond(HTTPStatus.OK, [JSON_TYPE], msgspec.json.encode(stats(state)))
        elif head.path.startswith(_EXPLAIN):
            self._explain(head, client)
        else:
            raise RequestError(HTTPStatus.NOT_FOUND, f"There is no {head.path.decode('latin-1')} here.")
        return None

    def _explain(self, head: RequestHead, client: ClientConnection) -> None:
        record = self._state.core.explanations.get(head.path[len(_EXPLAIN) :].decode("latin-1"))
        if record is None:
            raise RequestError(HTTPStatus.NOT_FOUND, "This request is not, or no longer, known here.")
        client.respond(HTTPStatus.OK, [JSON_TYPE], msgspec.json.encode(explain(record)))

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Start to listen."""
        return await asyncio.get_running_loop().create_server(lambda: ClientConnection(self), host, port)

    def tick(self) -> None:
        """Close connections that are too slow."""
        now = self.clock()
        for connection in list(self.connections):
            connection.check_deadline(now)
