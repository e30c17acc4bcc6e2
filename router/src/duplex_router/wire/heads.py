"""HTTP/1.1 heads: a client's request head by httptools under strict rules, an engine's answer head, and writing both.

RFC 9110 and RFC 9112; section numbers below are RFC 9112's unless another is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

import httptools

from .errors import RequestError, WireError
from .scanner import length_between, render_lines

Headers = Sequence[tuple[bytes, bytes]]

HEAD_END: Final = b"\r\n\r\n"
MAX_HEAD_BYTES: Final = 32 * 1024
MAX_HEADERS: Final = 100
MAX_TARGET_BYTES: Final = 8 * 1024
MAX_KNOWN_HEADS: Final = 1024
MAX_KNOWN_HEAD_BYTES: Final = 4096
_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([1-9][0-9]{0,17})(?=\r\n|\Z)")
_DIGITS: Final = re.compile(rb"[0-9]{1,18}\Z")
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+\Z")
_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"OPTIONS", b"PUT", b"PATCH", b"DELETE", b"TRACE", b"CONNECT"})


_Head = TypeVar("_Head")


class RequestHead:
    """A client's request without its body. `length` is None with a chunked body; header names are lower case.

    `derived`: what a server has made of the head, whatever its length; heads of one client's requests share it.
    `pattern`: of heads that may be taken for equal but for their length; None where none may.
    """

    __slots__ = (
        "derived", "expects_continue", "headers", "keep_alive", "length", "method", "path", "pattern", "version",
    )  # fmt: skip

    def __init__(
        self,
        method: bytes,
        path: bytes,
        version: bytes,
        headers: dict[bytes, bytes],
        length: int | None,
        *,
        keep_alive: bool,
        expects_continue: bool,
        derived: dict[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.version = version
        self.headers = headers
        self.length = length
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        self.derived = derived if derived is not None else {}
        self.pattern: Pattern | None = None


class Pattern:
    """What stands before and after the digits of a head's Content-Length: another may be equal but for these."""

    __slots__ = ("after", "before")

    def __init__(self, before: bytes, after: bytes) -> None:
        self.before = before
        self.after = after

    def length_in(self, head: bytes) -> int:
        """Return the length that a head of this pattern has; -1 for any other head."""
        return length_between(self.before, head, self.after)


class _KnownHeads(Generic[_Head]):
    """Heads that were parsed, by their bytes without the digits of Content-Length: clients and engines repeat them.

    What is equal but for these digits is valid, or not, for all of them alike. Nothing refused is ever kept. Engines
    put the date into theirs, so that one of them serves for a second.
    """

    def __init__(self) -> None:
        self._heads: dict[bytes, _Head] = {}

    @staticmethod
    def pattern_of(head: bytes) -> Pattern | None:
        """Return the pattern to keep a head by; None: it is not kept."""
        found = _LENGTH.search(head) if len(head) <= MAX_KNOWN_HEAD_BYTES else None
        if found is None:
            return None
        start, end = found.span(1)
        return Pattern(head[:start], head[end:])

    def find(self, pattern: Pattern) -> _Head | None:
        """Return a head of this pattern, of whatever length."""
        return self._heads.get(_key_of(pattern))

    def known(self, head: bytes) -> _Head | None:
        """Return what a head that has no length was parsed to before."""
        return self._heads.get(head)

    def keep(self, pattern: Pattern | bytes, head: _Head) -> None:
        """Keep a head. All go when there are too many: which of them come back is not known."""
        if len(self._heads) >= MAX_KNOWN_HEADS:
            self._heads.clear()
        self._heads[pattern if isinstance(pattern, bytes) else _key_of(pattern)] = head


def _key_of(pattern: Pattern) -> bytes:
    return b"%b\0%b" % (pattern.before, pattern.after)  # no valid head has this byte


class _Collector:
    """Receives httptools' callbacks."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))


def parse_request_head(head: bytes, last: RequestHead | None = None) -> RequestHead:
    """Parse one request head, up to and including its empty line. Raises RequestError, always with `close`.

    `last`: the one before it on the same connection, which it mostly is like.
    """
    if last is not None and last.pattern is not None:
        length = last.pattern.length_in(head)
        if length >= 0:
            return last if length == last.length else _of_length(last, length)
    pattern = _requests.pattern_of(head)
    if pattern is None:
        return _parse_request_head(head)
    known = _requests.find(pattern)
    if known is not None:
        return _of_length(known, pattern.length_in(head))
    parsed = _parse_request_head(head)
    parsed.pattern = pattern
    _requests.keep(pattern, parsed)
    return parsed


def _of_length(known: RequestHead, length: int) -> RequestHead:
    """Return a head that is equal but for its length."""
    head = RequestHead(
        known.method,
        known.path,
        known.version,
        known.headers,
        length,
        keep_alive=known.keep_alive,
        expects_continue=known.expects_continue,
        derived=known.derived,
    )
    head.pattern = known.pattern
    return head


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


class ResponseHead:
    """An engine's answer without its body. Neither `length` nor `chunked`: the body ends with the connection.

    Answers may share one: it is not changed once it is parsed.
    """

    __slots__ = ("chunked", "headers", "keep_alive", "length", "status")

    def __init__(
        self,
        status: int,
        headers: list[tuple[bytes, bytes]] | None = None,
        length: int | None = None,
        *,
        chunked: bool = False,
        keep_alive: bool = True,
    ) -> None:
        self.status = status
        self.headers = headers if headers is not None else []
        self.length = length
        self.chunked = chunked
        self.keep_alive = keep_alive

    def get(self, name: bytes) -> bytes:
        """Return the first value of a header, lower-case name; empty where absent."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""


def parse_response_head(head: bytes) -> ResponseHead:
    """Parse one answer head, without its empty line. Raises WireError."""
    last = _last_answer
    if head == last.streamed:
        return last.stream
    stream = _answers.known(head)
    if stream is not None:
        last.streamed, last.stream = head, stream
        return stream
    length = last.pattern.length_in(head)
    if length < 0:
        pattern = _answers.pattern_of(head)
        known = _answers.find(pattern) if pattern is not None else None
        if pattern is None or known is None:
            return _new_response_head(head, pattern)
        length = pattern.length_in(head)
        last.pattern, last.head = pattern, known
    known = last.head
    return ResponseHead(known.status, known.headers, length, chunked=False, keep_alive=known.keep_alive)


def _new_response_head(head: bytes, pattern: Pattern | None) -> ResponseHead:
    answer = _parse_response_head(head)
    if answer.chunked and len(head) <= MAX_KNOWN_HEAD_BYTES:
        _answers.keep(head, answer)
    elif pattern is not None and answer.length == pattern.length_in(head):
        _answers.keep(pattern, answer)  # but for a status that has no body, whatever its head says
    return answer


class _LastAnswer:
    """The heads of a whole and of a streamed answer that were read last: the next ones are mostly like them."""

    def __init__(self) -> None:
        self.pattern = Pattern(b"\0", b"")  # of no head
        self.head = ResponseHead(0)
        self.streamed = b""
        self.stream = self.head


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
_last_answer = _LastAnswer()


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


def render_fields(headers: Headers) -> bytes:
    """Write header lines."""
    lines = render_lines(headers)
    if lines is not None:
        return lines
    pieces: list[bytes] = []
    for name, value in headers:
        pieces.append(name)
        pieces.append(b": ")
        pieces.append(value)
        pieces.append(b"\r\n")
    return b"".join(pieces)


_status_lines: dict[int, bytes] = {}


def status_line(status: int) -> bytes:
    """Return `HTTP/1.1 200 OK` and the line's end for a status; unknown ones go without their phrase."""
    known = _status_lines.get(status)
    if known is None:
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = ""
        known = _status_lines[status] = f"HTTP/1.1 {status} {phrase}\r\n".encode()
    return known
