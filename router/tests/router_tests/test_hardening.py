"""RFC 9110 and RFC 9112 as a table of what a client may do wrong, and what becomes of it. Sections are RFC 9112's."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_router.http.connection import LINGER_SECONDS, MAX_UNREAD_BYTES
from duplex_router.http.settings import ServerSettings
from duplex_router.wire.heads import MAX_HEAD_BYTES, MAX_TARGET_BYTES

from .connections import Echo, connected, feed
from .raw_site import get, parts, site
from .splitting import cut

HOST = b"host: a\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"


def request(*lines: bytes, body: bytes = b"", first: bytes = b"POST / HTTP/1.1") -> bytes:
    return b"\r\n".join([first, *lines]) + b"\r\n" + HOST + b"\r\n" + body


CHUNKED = b"transfer-encoding: chunked"

REFUSED = {
    # 6.1, 6.3, 11.2: what two servers might frame differently
    "length-and-coding": (request(b"content-length: 4", CHUNKED, body=b"0\r\n\r\n" + SMUGGLED), 400),
    "coding-and-length": (request(CHUNKED, b"content-length: 60", body=b"0\r\n\r\n" + SMUGGLED), 400),
    "two-lengths": (request(b"content-length: 0", b"content-length: 60", body=SMUGGLED), 400),
    "equal-lengths": (request(b"content-length: 0", b"content-length: 0", body=SMUGGLED), 400),
    "list-of-lengths": (request(b"content-length: 0, 0", body=SMUGGLED), 400),
    "signed-length": (request(b"content-length: +5", body=b"hello"), 400),
    "negative-length": (request(b"content-length: -5", body=b"hello"), 400),
    "hexadecimal-length": (request(b"content-length: 0x5", body=b"hello"), 400),
    "length-of-words": (request(b"content-length: five", body=b"hello"), 400),
    "endless-length": (request(b"content-length: " + b"9" * 30, body=b""), 400),
    "unknown-coding": (request(b"transfer-encoding: gzip", body=b""), 400),
    "coding-before-chunked": (request(b"transfer-encoding: gzip, chunked", body=b"0\r\n\r\n"), 501),
    "chunked-twice": (request(CHUNKED, CHUNKED, body=b"0\r\n\r\n" + SMUGGLED), 400),
    "disguised-coding": (request(b"transfer-encoding: xchunked", body=b"0\r\n\r\n" + SMUGGLED), 400),
    "spaced-coding": (request(b"transfer-encoding : chunked", body=b"0\r\n\r\n" + SMUGGLED), 400),
    "coding-in-1.0": (request(CHUNKED, first=b"POST / HTTP/1.0", body=b"0\r\n\r\n" + SMUGGLED), 400),
    # 2.2, 5: lines
    "folded": (request(b"x: 1", b" content-length: 60", body=SMUGGLED), 400),
    "bare-lf": (b"GET / HTTP/1.1\nhost: a\r\n\r\n", 400),
    "bare-cr": (request(b"x: a\rb"), 400),
    "nul": (request(b"x: a\0b"), 400),
    "nameless-field": (request(b": 1"), 400),
    "no-colon": (request(b"nonsense"), 400),
    "leading-space": (b"GET / HTTP/1.1\r\n x: 1\r\n" + HOST + b"\r\n", 400),
    "name-with-space": (request(b"x y: 1"), 400),
    # 3: the request line
    "no-version": (b"GET /\r\n\r\n", 400),
    "http-2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "http-0.9": (b"GET / HTTP/0.9\r\n\r\n", 505),
    "lower-case-version": (b"GET / http/1.1\r\n" + HOST + b"\r\n", 505),
    "two-targets": (b"GET / /x HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "unknown-method": (request(first=b"BREW / HTTP/1.1"), 501),
    "lower-case-method": (request(first=b"get / HTTP/1.1"), 501),
    "no-host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "empty-host": (b"GET / HTTP/1.1\r\nhost:\r\n\r\n", 400),
    "two-hosts": (request(b"host: b"), 400),
    "control-in-target": (b"GET /\x01 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    # RFC 9110, 7.8, 9.3.6, 10.1.1
    "connect": (request(first=b"CONNECT a:1 HTTP/1.1"), 400),
    "websocket": (request(b"connection: upgrade", b"upgrade: websocket", first=b"GET / HTTP/1.1"), 400),
    "h2c": (request(b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AA"), 400),
    "unknown-expectation": (request(b"expect: 200-ok", b"content-length: 1"), 417),
    # sizes
    "long-head": (request(b"x: " + b"a" * MAX_HEAD_BYTES), 431),
    "head-without-end": (b"GET / HTTP/1.1\r\nx: " + b"a" * (2 * MAX_HEAD_BYTES), 431),
    "many-fields": (request(*[b"x: 1"] * 101), 431),
    "long-target": (request(first=b"GET /" + b"a" * MAX_TARGET_BYTES + b" HTTP/1.1"), 414),
    "long-body": (request(b"content-length: 1001"), 413),
    "long-chunked-body": (request(CHUNKED, body=b"3e9\r\n" + b"a" * 1001 + b"\r\n"), 413),
    "many-chunks": (request(CHUNKED, body=b"1\r\na\r\n" * 1001), 413),
    # 7.1: chunks
    "chunk-size-of-words": (request(CHUNKED, body=b"five\r\nhello\r\n"), 400),
    "signed-chunk-size": (request(CHUNKED, body=b"+5\r\nhello\r\n0\r\n\r\n"), 400),
    "prefixed-chunk-size": (request(CHUNKED, body=b"0x5\r\nhello\r\n0\r\n\r\n"), 400),
    "empty-chunk-size": (request(CHUNKED, body=b"\r\nhello\r\n0\r\n\r\n"), 400),
    "endless-chunk-size": (request(CHUNKED, body=b"f" * 20 + b"\r\n"), 400),
    "chunk-longer-than-said": (request(CHUNKED, body=b"2\r\nhello\r\n0\r\n\r\n"), 400),
    "chunk-line-of-lf": (request(CHUNKED, body=b"5\nhello\n0\n\n" + b"x" * 300), 400),
    "long-chunk-extension": (request(CHUNKED, body=b"5;" + b"x" * 300 + b"\r\nhello\r\n"), 400),
    "long-trailer": (request(CHUNKED, body=b"0\r\nx: " + b"a" * 9000), 400),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_ends_the_connection_and_nothing_is_served(name: str) -> None:
    wire, status = REFUSED[name]
    echo = Echo(ServerSettings(max_body_bytes=1000))
    connection, transport = connected(echo)
    feed(connection, wire)
    answer = transport.written
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"%d" % status]
    assert b"connection: close\r\n" in answer
    assert parts(answer)[1][b"content-type"] == b"application/json"
    assert transport.closed
    feed(connection, SMUGGLED)
    assert transport.written == answer
    assert echo.served == []


TAKEN = {
    "chunk-extensions-and-trailers": (
        request(CHUNKED, body=b"5;a=b;c\r\nhello\r\n0;last\r\ncontent-length: 9\r\nx: 1\r\n\r\n"),
        b"hello",
    ),
    "upper-case-hexadecimal": (request(CHUNKED, body=b"A\r\n0123456789\r\n0\r\n\r\n"), b"0123456789"),
    "leading-zeros": (request(b"content-length: 005", body=b"hello"), b"hello"),
    "coding-in-any-case": (request(b"TRANSFER-ENCODING: Chunked", body=b"0\r\n\r\n"), b""),
    "absolute-target": (request(b"content-length: 2", body=b"hi", first=b"POST http://a/x?y HTTP/1.1"), b"hi"),
    "empty-lines-before": (b"\r\n\r\n" + request(b"content-length: 2", body=b"hi"), b"hi"),
    "http-1.0": (request(b"content-length: 2", body=b"hi", first=b"POST / HTTP/1.0"), b"hi"),
}


@pytest.mark.parametrize("name", TAKEN)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_valid_is_served_alike_however_it_arrives(name: str, data: st.DataObject) -> None:
    wire, body = TAKEN[name]
    echo = Echo()
    connection, transport = connected(echo)
    for piece in cut(data, wire):
        feed(connection, piece)
    assert [served[2] for served in echo.served] == [body]
    assert parts(transport.written)[0] == 200
    assert parts(transport.written)[2] == body


@settings(max_examples=200, deadline=None)
@given(data=st.data(), bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_requests_in_any_pieces_are_served_in_order(data: st.DataObject, bodies: list[bytes]) -> None:
    echo = Echo()
    connection, transport = connected(echo)
    for number, body in enumerate(bodies):
        if data.draw(st.booleans()):
            framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in cut(data, body) if part)
            wire = request(CHUNKED, body=framed + b"0\r\n\r\n", first=b"POST /%d HTTP/1.1" % number)
        else:
            wire = request(b"content-length: %d" % len(body), body=body, first=b"POST /%d HTTP/1.1" % number)
        for piece in cut(data, wire):
            feed(connection, piece)
    assert echo.served == [(b"POST", b"/%d" % number, body) for number, body in enumerate(bodies)]
    assert transport.written.count(b"HTTP/1.1 200 OK") == len(bodies)
    assert not transport.closed


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_request_slipped_in_behind_another_is_never_served(data: st.DataObject) -> None:
    echo = Echo()
    echo.waits = True
    connection, transport = connected(echo)
    for piece in cut(data, request(b"content-length: 2", body=b"hi") + SMUGGLED):
        feed(connection, piece)
    assert echo.holds is not None
    echo.holds.respond(200, [], b"done")
    assert [served[1] for served in echo.served] == [b"/"]
    assert parts(transport.written)[1][b"connection"] == b"close"
    assert transport.closed


def test_a_flood_behind_a_request_is_neither_kept_nor_read_on() -> None:
    echo = Echo()
    echo.waits = True
    connection, transport = connected(echo)
    feed(connection, request(b"content-length: 2", body=b"hi"))
    feed(connection, b"x" * (2 * MAX_UNREAD_BYTES))
    assert transport.reading_paused
    assert connection._buffer == b""


@pytest.mark.parametrize("dribble", [b"GET / HTTP/1.1\r\n" + b"x: 1\r\n" * 50, request(b"content-length: 900")])
def test_a_slowloris_is_told_in_time_however_steadily_it_goes_on(dribble: bytes) -> None:
    limits = ServerSettings(head_seconds=10, body_silence_seconds=5, body_seconds=20)
    echo = Echo(limits)
    connection, transport = connected(echo)
    for byte in dribble + b"y" * 600:
        feed(connection, bytes([byte]))
        echo.now += 0.1
        connection.check_deadline(echo.now)
        if transport.closed:
            break
    assert parts(transport.written)[0] == 408
    head_arrives = 0.1 * len(dribble)
    assert echo.now <= max(limits.head_seconds, head_arrives + limits.body_seconds) + 0.2
    assert echo.served == []


def test_a_body_that_pauses_is_told() -> None:
    echo = Echo(ServerSettings(body_silence_seconds=5))
    connection, transport = connected(echo)
    feed(connection, request(b"content-length: 900", body=b"x"))
    echo.now += 4.9
    connection.check_deadline(echo.now)
    assert not transport.closed
    echo.now += 0.2
    connection.check_deadline(echo.now)
    assert parts(transport.written)[0] == 408


def test_a_large_body_takes_no_memory_before_it_comes() -> None:
    echo = Echo(ServerSettings(max_body_bytes=1 << 30))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = []
    for _ in range(8):
        connection, _ = connected(echo)
        feed(connection, request(b"content-length: %d" % (256 << 20), body=b"x"))
        held.append(connection)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 * 1024


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 600_000, 5_000_000])
def test_a_body_of_any_size_is_whole(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"y" * (size % 256)
    echo = Echo()
    connection, _ = connected(echo)
    wire = request(b"content-length: %d" % size, body=body)
    feed(connection, wire[:100])
    feed(connection, wire[100:])
    assert echo.served[0][2] == body


def test_a_refused_client_that_reads_on_is_left_after_a_while() -> None:
    echo = Echo()
    connection, transport = connected(echo)
    feed(connection, b"nonsense\r\n\r\n")
    transport.closed = False
    echo.now += LINGER_SECONDS + 0.1
    connection.check_deadline(echo.now)
    assert transport.closed


async def test_options_of_the_server_as_a_whole(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        status, headers, body = parts(await under_test.exchange(get("*", "OPTIONS")))
        assert (status, headers[b"allow"], body) == (204, b"OPTIONS", b"")
        assert parts(await under_test.exchange(get("*", "GET")))[0] == 405
