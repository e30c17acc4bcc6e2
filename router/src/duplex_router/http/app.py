"""The clients' side: which path is answered how, whose tenant a request is, and the listening server."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from duplex_router.fleet.document import FleetDocument
from duplex_router.fleet.terms import terms_of
from duplex_router.turn.core import JSON_TYPE, Core
from duplex_router.turn.subject import Subject
from duplex_router.turn.trace import begin_trace
from duplex_router.turn.turn import Turn
from duplex_router.wire.errors import RequestError
from duplex_router.wire.fields import Piece
from duplex_router.wire.heads import RequestHead
from duplex_router.wire.inference import Endpoint, parse_inference

from .caller import caller_of
from .connection import ClientConnection, Work
from .credentials import Credentials
from .passage import Passage
from .paths import HEALTH, INFERENCE, MODELS, PASSED, allowed, why_absent
from .settings import ServerSettings

BACKLOG: Final = 4096
_NO_KEY: Final = "Show a valid API key: `Authorization: Bearer KEY`, or `x-api-key: KEY`."
_NOT_READY: Final = "There is no usable fleet document yet: check the router's --serving or --fleet, and its log."


class App:
    """See `Application`."""

    def __init__(self, core: Core, settings: ServerSettings, credentials: Credentials) -> None:
        self.core = core
        self._credentials = credentials
        self.settings = settings
        self.connections: set[ClientConnection] = set()
        self.clock = core.clock

    def accepts(self, head: RequestHead) -> None:
        """See `Application`."""
        keys = self._credentials.api_keys
        if keys is not None and head.path not in HEALTH and not keys.admit(head):
            raise RequestError(HTTPStatus.UNAUTHORIZED, _NO_KEY, headers=((b"www-authenticate", b"Bearer"),))
        methods = allowed(head.path)
        if head.method in methods:
            return
        if not methods:
            raise RequestError(HTTPStatus.NOT_FOUND, why_absent(head.path))
        names = b", ".join(methods)
        message = f"Use one of {names.decode()} here."
        raise RequestError(HTTPStatus.METHOD_NOT_ALLOWED, message, headers=((b"allow", names),))

    def serve(self, head: RequestHead, body: Piece, client: ClientConnection) -> Work | None:
        """See `Application`."""
        if head.method == b"OPTIONS":
            client.respond(HTTPStatus.NO_CONTENT, [(b"allow", b", ".join(allowed(head.path)))], b"")
            return None
        if head.path in HEALTH:
            client.respond(HTTPStatus.OK if self.serves() else HTTPStatus.SERVICE_UNAVAILABLE, [], b"")
            return None
        document = self.core.fleet.document
        if document is None:
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, _NOT_READY, headers=((b"retry-after", b"2"),))
        if head.path.startswith(MODELS):
            self._models(head, document, client)
            return None
        endpoint = INFERENCE.get(head.path)
        if endpoint is None:
            lines = caller_of(head).passed_lines(with_key=self._credentials.forwards)
            return Passage.start(self.core, head, body, client, PASSED[head.path], lines=lines)
        return self._turn(endpoint, head, body, client, document)

    def serves(self) -> bool:
        """Tell whether some revision could take a turn now."""
        fleet = self.core.fleet
        return fleet.document is not None and any(fleet.complete(each.name) for each in fleet.document.revisions)

    def _turn(
        self, endpoint: Endpoint, head: RequestHead, body: Piece, client: ClientConnection, document: FleetDocument
    ) -> Work:
        if self.core.counters.in_flight >= self.settings.max_turns:
            message = "Too many requests are under way; try again."
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, message, headers=((b"retry-after", b"1"),))
        request = parse_inference(endpoint, body)
        terms = terms_of(document)
        if request.model is not None and not self.core.models.serves(request.model, terms.model):
            message = f"The model {request.model!r} is not served here; served: {terms.model!r}."
            raise RequestError(HTTPStatus.NOT_FOUND, message, param="model")
        caller = caller_of(head)
        request.session = request.session or caller.session
        request_id = caller.request_id()
        sample = self.core.trace_sample
        trace = begin_trace(caller.traceparent, sample) if sample is not None else None
        lines = caller.lines_for(request_id, trace, with_key=self._credentials.forwards)
        tenant = caller.tenant(terms.tenancy)
        subject = Subject(request, document, tenant, lines, request_id, trace=trace)
        turn = Turn(self.core, subject, client)
        turn.start()
        return turn

    def _models(self, head: RequestHead, document: FleetDocument, client: ClientConnection) -> None:
        models = self.core.models.listed(document.model.name)
        wanted = unquote_to_bytes(head.path[len(MODELS) + 1 :]).decode("utf-8", "replace")
        found = [model for model in models if model["id"] == wanted]
        if wanted and not found:
            raise RequestError(HTTPStatus.NOT_FOUND, f"The model {wanted!r} is not served here.", param="model")
        answer = found[0] if wanted else {"object": "list", "data": models}
        client.respond(HTTPStatus.OK, [JSON_TYPE], msgspec.json.encode(answer))

    def tick(self) -> None:
        """Close connections that are too slow; to be called about once a second."""
        now = self.clock()
        for connection in list(self.connections):
            connection.check_deadline(now)

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Start to listen. The sockets have no Nagle delay: asyncio and uvloop set TCP_NODELAY."""
        loop = asyncio.get_running_loop()
        tls = self._credentials.server
        patience = None if tls is None else self.settings.head_seconds
        return await loop.create_server(
            lambda: ClientConnection(self), host, port, backlog=BACKLOG, ssl=tls, ssl_handshake_timeout=patience
        )

    def drain(self) -> None:
        """Let each connection end after the request that it is answering."""
        for connection in list(self.connections):
            connection.drain()
