"""What can be wrong with bytes that came in, as the HTTP answer it deserves."""

from __future__ import annotations

from http import HTTPStatus


class WireError(Exception):
    """Bytes from an engine that break their protocol: the exchange cannot go on."""


class RequestError(Exception):
    """A client's request that is refused before any engine is touched.

    `status` is the HTTP status, `message` says what to do, `param` names the field. `close`: the connection's state is
    not known any more, so it ends after the answer.
    """

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        param: str | None = None,
        close: bool = False,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.close = close
        self.headers = headers
