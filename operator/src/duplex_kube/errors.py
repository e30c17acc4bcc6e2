"""What the API server can answer when it does not do as asked, classified by what a caller should do next."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any


class KubeError(Exception):
    """A request that the API server did not fulfil.

    ``status`` is the HTTP status (0 when no answer came), ``reason`` the Status object's reason, ``retry_after`` what
    the server asked for, in seconds.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class NotFoundError(KubeError):
    """404: the object, its namespace or its kind does not exist."""


class ConflictError(KubeError):
    """409: somebody else wrote first, the object exists already, or a precondition failed. Read again and redo."""


class InvalidError(KubeError):
    """400, 413, 415, 422: the object itself is wrong. Sending it again cannot help."""


class ForbiddenError(KubeError):
    """401, 403: a permission is missing, or a quota is used up. The message names it."""


class GoneError(KubeError):
    """410: the resourceVersion or continue token is too old. List again."""


class ThrottledError(KubeError):
    """429: the server asks for a pause."""


class TransientError(KubeError):
    """No answer, a timeout, or 5xx. The same request may succeed later."""


_BY_STATUS: Mapping[int, type[KubeError]] = {
    HTTPStatus.BAD_REQUEST: InvalidError,
    HTTPStatus.UNAUTHORIZED: ForbiddenError,
    HTTPStatus.FORBIDDEN: ForbiddenError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.GONE: GoneError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: InvalidError,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: InvalidError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidError,
    HTTPStatus.TOO_MANY_REQUESTS: ThrottledError,
}

RETRYABLE = (ThrottledError, TransientError)


def error_from_status(code: int, status: Mapping[str, Any], *, retry_after: float | None = None) -> KubeError:
    """Classify an HTTP ``code`` and the body's Status object (empty when the body was none) as an error."""
    kind = _BY_STATUS.get(code, TransientError if code >= HTTPStatus.INTERNAL_SERVER_ERROR else KubeError)
    details = status.get("details") or {}
    if retry_after is None and details.get("retryAfterSeconds"):
        retry_after = float(details["retryAfterSeconds"])
    message = str(status.get("message") or f"the API server answered HTTP {code}")
    return kind(message, status=code, reason=str(status.get("reason") or ""), retry_after=retry_after)
