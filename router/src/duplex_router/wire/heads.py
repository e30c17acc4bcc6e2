"""HTTP/1.1 heads: a client's request head by httptools under strict rules, an engine's answer head, and writing both.

RFC 9110 and RFC 9112; section numbers below are RFC 9112's unless another is named.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import httptools

from .errors import RequestError, WireError

Headers = Sequence[tuple[bytes, bytes]]

HEAD_END = b"\r\n\r\n"
MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
MAX_TARGET_BYTES = 8 * 1024
MAX_KNOWN_HEADS = 1024
MAX_KNOWN_HEAD_BYTES = 4096
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([1-9][0-9]{0,17})(?=\r\n|\Z)")
_DIGITS = re.compile(rb"[0-9]{1,18}\Z")
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_TARGET = re.compile(rb"[\x21-\x7e]+\Z")
_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"OPTIONS", b"PUT", b"PATCH", b"DELETE", b"TRACE", b"CONNECT"})


_Head = TypeVar("_Head")


@dataclass(slots=True)
class RequestHead:
    """A client's request without its body. `length` is None with a chunked body; header names are lower case.

    `derived`: what a server has made of the head, whatever its length; heads of one client's requests share it.
    """

    method: bytes
    path: bytes
    version: bytes
    headers: dict[bytes, bytes]
    length: int | None
    keep_alive: bool
    expects_continue: bool
    derived: dict[str, Any] = field(default_factory=dict)


class _KnownHeads(Generic[_Head]):
    """Heads that were parsed, by their bytes without the digits of Content-Length: clients and engines repeat them.

    What is equal but for these digits is valid, or not, for all of them alike. Nothing refused is ever kept. Engines
    put the date into theirs, so that one of them serves for a second.
    """

    def __init__(self) -> None:
        self._heads: dict[bytes, _Head] = {}

    def find(self, head: bytes) -> tuple[bytes, int, _Head | None]:
        """Return what to keep the head by (empty: not at all), its length, and a head that is equal but for that."""
        found = _LENGTH.search(head)
        if found is None or len(head) > MAX_KNOWN_HEAD_BYTES:
            return b"", 0, None
        start, end = found.span(1)
        key = head[:start] + b"\0" + head[end:]  # no valid head has this byte
        return key, int(found[1]), self._heads.get(key)

    def known(self, head: bytes) -> _Head | None:
        """Return what a head that has no length was parsed to before."""
        return self._heads.get(head)

    def keep(self, key: bytes, head: _Head) -> None:
        """Keep a head. All go when there are too many: which of them come back is not known."""
        if len(self._heads) >= MAX_KNOWN_HEADS:
            self._heads.clear()
        self._heads[key] = head


class _Collector:
    """Receives httptools' callbacks."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))


def parse_request_head(head: bytes) -> RequestHead:
    """Parse one request head, up to and including its empty line. Raises RequestError, always with `close`."""
    key, length, known = _requests.find(head)
    if known is not None:
        return RequestHead(
            known.method,
            known.path,
            known.version,
            known.headers,
            length,
            known.keep_alive,
            known.expects_continue,
            known.derived,
        )
    parsed = _parse_request_head(head)
    if key:
        _requests.keep(key, parsed)
    return parsed


def _parse_request_head(head: bytes) -> RequestHead:
    method = _check_request_line(head)
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade as error:
        raise _refuse(HTTPStatus.BAD_REQUEST, "Upgrade and CONNECT are not supported; send plain HTTP/1.1.") from error
    except httptools.HttpParserError as error:
        raise _refuse(HTTPStatus.BAD_REQUEST, f"The request head is not valid HTTP/1.1: {error}.") from error
    if len(collector.headers) > MAX_HEADERS:
        raise _refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"Send at most {MAX_HEADERS} header fields.")
    version = parser.get_http_version().encode()
    headers = _unique(collector.headers)
    if version == b"1.1" and not headers.get(b"host"):
        raise _refuse(HTTPStatus.BAD_REQUEST, "HTTP/1.1 needs one Host header.")  # 3.2
    length = _body_length(headers, version)
    expects = headers.get(b"expect", b"").lower()
    if expects not in (b"", b"100-continue"):
        raise _refuse(HTTPStatus.EXPECTATION_FAILED, "Only `Expect: 100-continue` is understood.")
    return RequestHead(
        method=method,
        path=_path_of(collector.url),
        version=version,
        headers=headers,
        length=length,
        # An HTTP/1.0 client would need to be told that it may go on; it is not worth it (9.3).
        keep_alive=version == b"1.1" and b"close" not in headers.get(b"connection", b"").lower(),
        expects_continue=bool(expects) and version == b"1.1" and length != 0,
    )


def _check_request_line(head: bytes) -> bytes:
    line = head[: head.find(b"\r\n")]
    parts = line.split(b" ")
    if len(parts) != 3 or not _TARGET.match(parts[1]):  # noqa: PLR2004 - method, target, version
        raise _refuse(HTTPStatus.BAD_REQUEST, "The request line must be `METHOD target HTTP/1.1`.")
    method, target, version = parts
    if len(target) > MAX_TARGET_BYTES:
        raise _refuse(HTTPStatus.REQUEST_URI_TOO_LONG, f"The target must be at most {MAX_TARGET_BYTES} bytes.")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise _refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "Use HTTP/1.1.")
    if method not in _METHODS:
        status = HTTPStatus.NOT_IMPLEMENTED if _TOKEN.match(method) else HTTPStatus.BAD_REQUEST
        raise _refuse(status, "This method is not known.")
    if b"\n " in head or b"\n\t" in head:
        raise _refuse(HTTPStatus.BAD_REQUEST, "Folded header lines are not accepted.")  # 5.2
    if re.search(rb"[^\r]\n|\r[^\n]|\0", head):
        raise _refuse(HTTPStatus.BAD_REQUEST, "Header lines must end in CRLF and hold no control bytes.")  # 2.2
    return method


def _unique(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name not in headers:
            headers[name] = value
        elif name in (b"host", b"content-length", b"transfer-encoding", b"authorization", b"content-type"):
            raise _refuse(HTTPStatus.BAD_REQUEST, f"Send {name.decode()} once.")
        else:
            headers[name] += b", " + value
    return headers


def _body_length(headers: dict[bytes, bytes], version: bytes) -> int | None:
    coding = headers.get(b"transfer-encoding")
    length = headers.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise _refuse(HTTPStatus.BAD_REQUEST, "Send Content-Length or Transfer-Encoding, not both.")  # 6.3
        if version == b"1.0":
            raise _refuse(HTTPStatus.BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding.")  # 6.1
        if coding.strip().lower() != b"chunked":
            raise _refuse(HTTPStatus.NOT_IMPLEMENTED, "The only transfer coding understood is chunked.")  # 6.1
        return None
    if length is None:
        return 0
    if not _DIGITS.match(length):
        raise _refuse(HTTPStatus.BAD_REQUEST, "Content-Length must be one decimal number.")
    return int(length)


def _path_of(url: bytes) -> bytes:
    if url == b"*":
        return url
    if not url.startswith(b"/"):
        url = httptools.parse_url(url).path or b"/"
    return url.partition(b"?")[0].partition(b"#")[0]


def _refuse(status: HTTPStatus, message: str) -> RequestError:
    return RequestError(status, message, close=True)


@dataclass(slots=True)
class ResponseHead:
    """An engine's answer without its body. Neither `length` nor `chunked`: the body ends with the connection.

    Answers may share one: it is not changed once it is parsed.
    """

    status: int
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    length: int | None = None
    chunked: bool = False
    keep_alive: bool = True

    def get(self, name: bytes) -> bytes:
        """Return the first value of a header, lower-case name; empty where absent."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""


def parse_response_head(head: bytes) -> ResponseHead:
    """Parse one answer head, without its empty line. Raises WireError."""
    stream = _answers.known(head)
    if stream is not None:
        return stream
    key, length, known = _answers.find(head)
    if known is not None:
        return ResponseHead(known.status, known.headers, length, chunked=False, keep_alive=known.keep_alive)
    answer = _parse_response_head(head)
    if answer.chunked and len(head) <= MAX_KNOWN_HEAD_BYTES:
        _answers.keep(head, answer)
    elif key and answer.length == length:  # a status without a body has none, whatever its head says
        _answers.keep(key, answer)
    return answer


def _parse_response_head(head: bytes) -> ResponseHead:
    status_line, *lines = head.split(b"\r\n")
    parts = status_line.split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():  # noqa: PLR2004 - see 4
        raise WireError(f"not an HTTP status line: {status_line[:80]!r}")
    answer = ResponseHead(int(parts[1]), keep_alive=parts[0] != b"HTTP/1.0")
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise WireError(f"not a header line: {line[:80]!r}")
        answer.headers.append((name.lower(), value.strip()))
    _frame(answer)
    return answer


_requests: _KnownHeads[RequestHead] = _KnownHeads()
_answers: _KnownHeads[ResponseHead] = _KnownHeads()


def _frame(answer: ResponseHead) -> None:
    for name, value in answer.headers:
        if name == b"content-length":
            if not _DIGITS.match(value) or answer.length not in (None, int(value)):
                raise WireError("contradictory Content-Length")
            answer.length = int(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise WireError(f"unknown transfer coding {value[:40]!r}")
            answer.chunked = True
        elif name == b"connection":
            answer.keep_alive = value.lower() != b"close" and (answer.keep_alive or value.lower() == b"keep-alive")
    if answer.chunked and answer.length is not None:
        raise WireError("both Content-Length and Transfer-Encoding")
    if answer.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        answer.length = 0
    if not answer.chunked and answer.length is None:
        answer.keep_alive = False


def render_fields(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Write header lines."""
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


@functools.lru_cache(maxsize=256)
def status_line(status: int) -> bytes:
    """Return `HTTP/1.1 200 OK` and the line's end for a status; unknown ones go without their phrase."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()
