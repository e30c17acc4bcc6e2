"""The clients' side: which path is answered how, whose tenant a request is, and the listening server."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from http import HTTPStatus

import msgspec

from duplex_connector.contract import Header
from duplex_router.fleet.document import FleetDocument, Tenancy
from duplex_router.turn.core import JSON_TYPE, Core
from duplex_router.turn.subject import Subject
from duplex_router.turn.turn import Turn
from duplex_router.wire.errors import RequestError
from duplex_router.wire.heads import Headers, RequestHead
from duplex_router.wire.inference import Endpoint, parse_inference

from .connection import ClientConnection, Work
from .passage import Passage
from .settings import ServerSettings

BACKLOG = 4096
INFERENCE = {endpoint.encode(): endpoint for endpoint in Endpoint}
PASSED_POST = frozenset({b"/tokenize", b"/detokenize"})
PASSED_GET = frozenset({b"/version"})
HEALTH = frozenset({b"/health", b"/ping"})
MODELS = b"/v1/models"
_GET = b"GET, HEAD, OPTIONS"
_POST = b"POST, OPTIONS"
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}\Z")
_FORWARDED = (b"authorization", b"traceparent", b"tracestate", Header.SESSION_ID.encode())
_NOT_READY = "There is no usable fleet document yet: check the router's --serving or --fleet, and its log."


class App:
    """See `Application`."""

    def __init__(self, core: Core, settings: ServerSettings) -> None:
        self.core = core
        self.settings = settings
        self.connections: set[ClientConnection] = set()
        self.clock = core.clock

    def accepts(self, head: RequestHead) -> None:
        """See `Application`."""
        allowed = _allowed(head.path)
        if not allowed:
            raise RequestError(HTTPStatus.NOT_FOUND, f"There is no {head.path.decode('latin-1')} here.")
        if head.method.decode() not in allowed.decode().split(", "):
            message = f"Use one of {allowed.decode()} here."
            raise RequestError(HTTPStatus.METHOD_NOT_ALLOWED, message, headers=((b"allow", allowed),))

    def serve(self, head: RequestHead, body: bytes, client: ClientConnection) -> Work | None:
        """See `Application`."""
        if head.method == b"OPTIONS":
            client.respond(HTTPStatus.NO_CONTENT, [(b"allow", _allowed(head.path))], b"")
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
            return Passage.start(self.core, head, body, client, self._forwarded(head, self._request_id(head)))
        return self._turn(endpoint, head, body, client, document)

    def serves(self) -> bool:
        """Tell whether some revision could take a turn now."""
        fleet = self.core.fleet
        return fleet.document is not None and any(fleet.complete(each.name) for each in fleet.document.revisions)

    def _turn(
        self, endpoint: Endpoint, head: RequestHead, body: bytes, client: ClientConnection, document: FleetDocument
    ) -> Work:
        if self.core.counters.in_flight >= self.settings.max_turns:
            message = "Too many requests are under way; try again."
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, message, headers=((b"retry-after", b"1"),))
        request = parse_inference(endpoint, body)
        if request.model is not None and request.model != document.model.name:
            message = f"The model {request.model!r} is not served here; served: {document.model.name!r}."
            raise RequestError(HTTPStatus.NOT_FOUND, message, param="model")
        if not request.session:
            request.session = head.headers.get(Header.SESSION_ID.encode(), b"")
        request_id = self._request_id(head)
        subject = Subject(request, document, tenant_of(head, document), self._forwarded(head, request_id), request_id)
        turn = Turn(self.core, subject, client)
        turn.start()
        return turn

    def _request_id(self, head: RequestHead) -> bytes:
        given = head.headers.get(Header.REQUEST_ID.encode(), b"")
        return given if _REQUEST_ID.match(given) else os.urandom(16).hex().encode()

    def _forwarded(self, head: RequestHead, request_id: bytes) -> Headers:
        headers = [JSON_TYPE, (Header.REQUEST_ID.encode(), request_id)]
        for name in _FORWARDED:
            value = head.headers.get(name)
            if value is not None:
                headers.append((name, value))
        return headers

    def _models(self, head: RequestHead, document: FleetDocument, client: ClientConnection) -> None:
        model = {"id": document.model.name, "object": "model", "created": 0, "owned_by": "duplex"}
        wanted = head.path[len(MODELS) :].strip(b"/").decode("latin-1")
        if wanted not in ("", document.model.name):
            raise RequestError(HTTPStatus.NOT_FOUND, f"The model {wanted!r} is not served here.", param="model")
        answer = model if wanted else {"object": "list", "data": [model]}
        client.respond(HTTPStatus.OK, [JSON_TYPE], msgspec.json.encode(answer))

    def tick(self) -> None:
        """Close connections that are too slow; to be called about once a second."""
        now = self.clock()
        for connection in list(self.connections):
            connection.check_deadline(now)

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Start to listen. The sockets have no Nagle delay: asyncio and uvloop set TCP_NODELAY."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: ClientConnection(self), host, port, backlog=BACKLOG)

    def drain(self) -> None:
        """Let each connection end after the request that it is answering."""
        for connection in list(self.connections):
            connection.drain()


def _allowed(path: bytes) -> bytes:
    if path in INFERENCE or path in PASSED_POST:
        return _POST
    if path in HEALTH or path in PASSED_GET or path == MODELS or path.startswith(MODELS + b"/"):
        return _GET
    return b""


def tenant_of(head: RequestHead, document: FleetDocument) -> bytes:
    """Return what stands for the request's tenant: a digest, so that no secret is kept."""
    tenancy = document.policy.tenancy
    if tenancy is Tenancy.NONE:
        return b""
    name = b"authorization" if tenancy is Tenancy.AUTHORIZATION else Header.TENANT.encode()
    return hashlib.blake2b(head.headers.get(name, b""), digest_size=16, person=b"duplex-tenant").digest()
