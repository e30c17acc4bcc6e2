"""Request heads by RFC 9112's rules, as a table; answer heads."""

import pytest

from duplex_router.wire.errors import RequestError, WireError
from duplex_router.wire.heads import parse_request_head, parse_response_head

GOOD = b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\nX-One: 1\r\n\r\n"


def test_a_good_head() -> None:
    head = parse_request_head(GOOD)
    assert (head.method, head.path, head.length, head.keep_alive) == (b"POST", b"/v1/completions", 12, True)
    assert head.headers[b"x-one"] == b"1"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n\tfolded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\nX: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX y: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        (b"B(D / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\nContent-Length: 1\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 101 + b"\r\n", 431),
        (b"GET /\x80 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ],
)
def test_bad_heads_are_refused_and_the_connection_ends(head: bytes, status: int) -> None:
    with pytest.raises(RequestError) as error:
        parse_request_head(head)
    assert error.value.status == status
    assert error.value.close


def test_chunked_and_continue() -> None:
    head = parse_request_head(
        b"POST / HTTP/1.1\r\nHost: a\r\ntransfer-encoding: Chunked\r\nexpect: 100-Continue\r\n\r\n"
    )
    assert head.length is None
    assert head.expects_continue


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n",
    ],
)
def test_what_closes_after_the_answer(head: bytes) -> None:
    assert not parse_request_head(head).keep_alive


def test_an_absolute_target_is_its_path() -> None:
    assert parse_request_head(b"GET http://a/v1/models HTTP/1.1\r\nHost: a\r\n\r\n").path == b"/v1/models"


def test_an_answer_head() -> None:
    head = parse_response_head(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked")
    assert (head.status, head.chunked, head.length, head.keep_alive) == (200, True, None, True)
    assert head.get(b"content-type") == b"text/plain"


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0", False),
        (b"HTTP/1.1 200 OK", False),
        (b"HTTP/1.1 204 No Content", True),
    ],
)
def test_whether_an_engines_connection_may_be_used_again(head: bytes, keep_alive: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert parse_response_head(head).keep_alive is keep_alive


@pytest.mark.parametrize(
    "head",
    [
        b"ICY 200 OK",
        b"HTTP/1.1 abc",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip",
    ],
)
def test_broken_answer_heads_are_refused(head: bytes) -> None:
    with pytest.raises(WireError):
        parse_response_head(head)
