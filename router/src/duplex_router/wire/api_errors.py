"""Errors of the router's own in the shape of the API that a client speaks: OpenAI's or Anthropic's."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

_AFTER_READING = frozenset({"BadRequestError", "NotFoundError"})

MESSAGES_PATH = b"/v1/messages"
RESPONSES_PATH = b"/v1/responses"

_OPENAI_TYPES = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
"""Anthropic's names, https://docs.anthropic.com/en/api/errors; 503 as vLLM maps it (anthropic/protocol.py, 0.33.0)."""


def speaks_anthropic(path: bytes) -> bool:
    """Tell whether a path belongs to Anthropic's API."""
    return path.startswith(MESSAGES_PATH)


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None, path: bytes = b""
) -> bytes:
    """Return an error's JSON for a client that asked for `path`."""
    status = HTTPStatus(status)
    if speaks_anthropic(path):
        kind = _ANTHROPIC_TYPES.get(status) or _other(status, "api_error")
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
    kind = _OPENAI_TYPES.get(status) or _other(status, "server_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def _other(status: HTTPStatus, server: str) -> str:
    return "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else server


def error_event(status: int, message: str, *, path: bytes, sequence: int) -> bytes:
    """Return the event that ends a stream which broke. `sequence`: the number of the next event, where events have one.

    OpenAI's Responses API: https://platform.openai.com/docs/api-reference/responses-streaming/error.
    """
    if path == RESPONSES_PATH:
        fields = {"type": "error", "code": "server_error", "message": message, "param": None}
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode({**fields, "sequence_number": sequence})
    event = b"event: error\n" if speaks_anthropic(path) else b""
    return b"%bdata: %b\n\n" % (event, error_body(status, message, path=path))


class _Error(msgspec.Struct):
    message: str
    type: str | None = None


class _Refusal(msgspec.Struct):
    error: _Error
    type: str | None = None


_decode_refusal = msgspec.json.Decoder(_Refusal).decode


def frees_hand_off(body: bytes) -> bool:
    """Tell whether a decode engine that refused a request with this body has told prefill that its blocks may go.

    vLLM does so for what it refuses once it has read a request (generate/base/serving.py, 0.33.0); what its validation,
    its key check or a proxy before it refuses has other types, or another shape.
    """
    try:
        return _decode_refusal(body).error.type in _AFTER_READING
    except (msgspec.DecodeError, RecursionError):
        return False


def engines_error(status: int, body: bytes, path: bytes) -> bytes:
    """Return an engine's error as a client of `path` expects it.

    vLLM answers a malformed body in OpenAI's shape on every path (exception_handling/handlers/validation.py, 0.33.0).
    """
    if not speaks_anthropic(path):
        return body
    try:
        refusal = _decode_refusal(body)
    except (msgspec.DecodeError, RecursionError):
        return body
    return body if refusal.type == "error" else error_body(status, refusal.error.message, path=path)
