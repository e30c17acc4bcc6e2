"""A request that is passed on to one engine as it is, and its answer passed back."""

from __future__ import annotations

from http import HTTPStatus

from duplex_router.turn.core import JSON_TYPE, Client, Core
from duplex_router.turn.legs import Answer, Failure, WholeAnswer
from duplex_router.wire.api_errors import engines_error, error_body
from duplex_router.wire.errors import RequestError
from duplex_router.wire.fields import Piece
from duplex_router.wire.heads import RequestHead

from .paths import Passed


class Passage:
    """One such request under way."""

    def __init__(self, client: Client, path: bytes) -> None:
        self._client = client
        self._path = path
        self._receiver = WholeAnswer(self._done)

    @classmethod
    def start(
        cls, core: Core, head: RequestHead, body: Piece, client: Client, passed: Passed, *, lines: bytes
    ) -> Passage:
        """Send it with these header lines to a ready engine, of the path's role if possible.

        Raises RequestError where none is ready.
        """
        ready = [engine for engine in core.fleet.engines.values() if engine.takes_legs()]
        ready.sort(key=lambda engine: (engine.role is not passed.role, engine.legs))
        if not ready:
            message = "No engine is ready."
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, message, headers=((b"retry-after", b"1"),))
        passage = cls(client, head.path)
        method = b"GET" if head.method == b"HEAD" else head.method
        passage._receiver.exchange = core.transport.request(
            ready[0], head.path, lines, [body], passage._receiver, seconds=passed.seconds, method=method
        )
        return passage

    def _done(self, result: Answer | Failure) -> None:
        if isinstance(result, Failure):
            message = f"The engine gave no answer ({result.value})."
            body = error_body(HTTPStatus.BAD_GATEWAY, message, path=self._path)
            self._client.respond(HTTPStatus.BAD_GATEWAY, [JSON_TYPE], body)
            return
        kind = result.head.get(b"content-type")
        failed = result.status >= HTTPStatus.BAD_REQUEST
        body = engines_error(result.status, result.body, self._path) if failed else result.body
        self._client.respond(result.status, [(b"content-type", kind)] if kind else [], body)

    def client_gone(self) -> None:
        """See `Work`."""
        if self._receiver.exchange is not None:
            self._receiver.exchange.abort()

    def pause(self) -> None:
        """See `Work`: the answer is whole before any of it is written."""

    def resume(self) -> None:
        """See `Work`."""
