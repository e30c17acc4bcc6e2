"""A request that is passed on to one engine as it is, and its answer passed back."""

from __future__ import annotations

from http import HTTPStatus

from duplex_connector.contract import Role
from duplex_router.turn.core import JSON_TYPE, Client, Core
from duplex_router.turn.legs import Answer, Failure, WholeAnswer
from duplex_router.wire.api_errors import error_body
from duplex_router.wire.errors import RequestError
from duplex_router.wire.fields import Piece
from duplex_router.wire.heads import RequestHead

from .caller import Caller

SECONDS = 30.0


class Passage:
    """One such request under way."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._receiver = WholeAnswer(self._done)

    @classmethod
    def start(cls, core: Core, head: RequestHead, body: Piece, client: Client, caller: Caller) -> Passage:
        """Send it to a ready engine, a prefill engine if there is one. Raises RequestError where there is none."""
        ready = [engine for engine in core.fleet.engines.values() if engine.takes_legs()]
        ready.sort(key=lambda engine: (engine.role is not Role.PREFILL, engine.legs))
        if not ready:
            message = "No engine is ready."
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, message, headers=((b"retry-after", b"1"),))
        passage = cls(client)
        method = b"GET" if head.method == b"HEAD" else head.method
        lines = b"%bx-request-id: %b\r\n" % (caller.lines, caller.request_id())
        passage._receiver.exchange = core.transport.request(
            ready[0], head.path, lines, [body], passage._receiver, seconds=SECONDS, method=method
        )
        return passage

    def _done(self, result: Answer | Failure) -> None:
        if isinstance(result, Failure):
            message = f"The engine gave no answer ({result.value})."
            self._client.respond(HTTPStatus.BAD_GATEWAY, [JSON_TYPE], error_body(HTTPStatus.BAD_GATEWAY, message))
            return
        kind = result.head.get(b"content-type")
        self._client.respond(result.status, [(b"content-type", kind)] if kind else [], result.body)

    def client_gone(self) -> None:
        """See `Work`."""
        if self._receiver.exchange is not None:
            self._receiver.exchange.abort()

    def pause(self) -> None:
        """See `Work`: the answer is whole before any of it is written."""

    def resume(self) -> None:
        """See `Work`."""
