"""The client's side on real sockets: what is refused and how, and that the connection's state stays sane."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duplex_router.http.settings import ServerSettings
from duplex_router.http.upstream import IDLE_SECONDS, UpstreamExchange
from duplex_router.turn.core import LegSettings
from duplex_router.turn.decode import DecodeLeg
from duplex_router.turn.turn import Turn

from .raw_site import (
    OK_CHAT,
    STREAM_HEAD,
    FakeEngine,
    Site,
    default_answer,
    event,
    get,
    parts,
    post,
    read_answer,
    site,
    stream_of,
)
from .rig import router
from .splitting import cut


async def test_what_engines_must_not_see_is_refused_in_openais_shape(tmp_path: Path) -> None:
    cases: list[tuple[bytes, int]] = [
        (post(b"{"), 400),
        (post(b"[1]"), 400),
        (post(b""), 400),
        (post(b'{"model":"m","messages":[],"messages":[]}'), 400),
        (post({"model": "m"}), 400),
        (post({**OK_CHAT, "messages": []}), 400),
        (post({**OK_CHAT, "model": "other"}), 404),
        (post({**OK_CHAT, "model": 7}), 400),
        (post({**OK_CHAT, "stream": "yes"}), 400),
        (post({**OK_CHAT, "vllm_xargs": {"kv_transfer_params": {"remote_host": "x"}}}), 400),
        (post({"prompt": [-1]}, "/v1/completions"), 400),
        (post(OK_CHAT, "/v1/nothing"), 404),
        (get("/v1/models/other"), 404),
        (get("/v1/chat/completions"), 405),
        (post(OK_CHAT, "/v1/models"), 405),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/3.0\r\nhost: x\r\n\r\n", 505),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 40_000, 431),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2000\r\n\r\n", 413),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5dc\r\n" + b"a" * 1500, 413),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: more\r\ncontent-length: 1\r\n\r\n", 417),
    ]
    async with site(tmp_path, server=ServerSettings(max_body_bytes=1000)) as under_test:
        for wire, expected in cases:
            status, headers, body = parts(await under_test.exchange(wire))
            assert status == expected, wire[:100]
            assert headers[b"content-type"] == b"application/json"
            error = json.loads(body)["error"]
            assert error["message"]
            assert error["type"]
        assert under_test.touched == 0


async def test_methods_that_ask_about_a_path(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        status, headers, body = parts(await under_test.exchange(get("/v1/chat/completions", "OPTIONS")))
        assert (status, headers[b"allow"], body) == (204, b"POST, OPTIONS", b"")
        status, headers, body = parts(await under_test.exchange(get("/v1/models", "HEAD")))
        assert (status, body) == (200, b"")
        assert int(headers[b"content-length"]) > 0
        assert parts(await under_test.exchange(get("/health")))[0] == 200


async def test_requests_follow_one_another_on_a_connection(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        reader, writer = await under_test.open()
        statuses = []
        for wire in (post(close=False), post(b"{", close=False), b"\r\n" + post(close=False), get("/health")):
            writer.write(wire)
            statuses.append(parts(await read_answer(reader))[0])
        assert statuses == [200, 400, 200, 200]
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("follows", [post(), get("/health"), b"x", post() * 500])
async def test_a_request_before_the_last_ones_answer_is_not_read(tmp_path: Path, follows: bytes) -> None:
    async with site(tmp_path) as under_test:
        answer = await under_test.exchange(post(close=False) + follows)
        assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200"]
        assert parts(answer)[2], "the answer is whole"
        assert under_test.touched == 2


async def test_an_empty_line_after_a_body_is_no_request(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        reader, writer = await under_test.open()
        for _ in range(2):
            writer.write(post(close=False) + b"\r\n")
            assert b"connection: close" not in await read_answer(reader)
        writer.close()


async def test_a_chunked_request_body_and_expect_100_continue(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        reader, writer = await under_test.open()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nconnection: close\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw = json.dumps(OK_CHAT).encode()
        writer.write(b"%x\r\n%b\r\n%x;x=y\r\n%b\r\n0\r\nt: 1\r\n\r\n" % (10, raw[:10], len(raw) - 10, raw[10:]))
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        assert parts(answer)[0] == 200
        assert under_test.prefill.requests[0][2]["messages"] == OK_CHAT["messages"]


async def test_an_http_1_0_client_gets_its_stream_unframed(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        raw = json.dumps({**OK_CHAT, "stream": True}).encode()
        wire = f"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw
        status, headers, body = parts(await under_test.exchange(wire))
        assert status == 200
        assert b"transfer-encoding" not in headers
        assert body.startswith(b"data: ")
        assert body.endswith(b"data: [DONE]\n\n")


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736"


async def test_what_passes_to_engines_and_what_does_not(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        spoofed = {**OK_CHAT, "kv_transfer_params": {"remote_host": "10.9.9.9", "remote_block_ids": [[1]]}}
        headers = ["authorization: Bearer k", "x-request-id: mine", f"traceparent: {TRACE}-00f067aa0ba902b7-01"]
        headers.append("x-data-parallel-rank: 3")
        answer = await under_test.exchange(post(spoofed, "/v1/chat/completions", *headers))
        assert parts(answer)[1][b"x-request-id"] == b"mine"
        for engine in (under_test.prefill, under_test.decode):
            (request,) = [each for each in engine.requests if each[0] == "/v1/chat/completions"]
            assert "10.9.9.9" not in json.dumps(request[2])
            assert request[1][b"authorization"] == b"Bearer k"
            assert request[1][b"x-request-id"] == b"mine"
            assert request[1][b"traceparent"].decode().startswith(TRACE)
            assert b"x-data-parallel-rank" not in request[1]
        assert b"10.0.2.9" not in answer


@pytest.mark.parametrize("given_id", ["", "two words", "x" * 200, "caf\u00e9"])
async def test_a_request_id_that_is_none_is_replaced(tmp_path: Path, given_id: str) -> None:
    async with site(tmp_path) as under_test:
        answer = await under_test.exchange(post(OK_CHAT, "/v1/chat/completions", f"x-request-id: {given_id}"))
        assert len(parts(answer)[1][b"x-request-id"]) == 32


async def test_without_a_document_the_answer_is_503(tmp_path: Path) -> None:
    async with router(tmp_path, None) as under_test:
        site_of = Site(under_test, FakeEngine(), FakeEngine())
        status, headers, _ = parts(await site_of.exchange(post()))
        assert (status, headers[b"retry-after"]) == (503, b"2")
        assert parts(await site_of.exchange(get("/health")))[0] == 503


async def test_beyond_the_limit_turns_are_refused_at_once(tmp_path: Path) -> None:
    async with site(tmp_path, server=ServerSettings(max_turns=0)) as under_test:
        status, headers, _ = parts(await under_test.exchange(post()))
        assert (status, headers[b"retry-after"]) == (503, b"1")
        assert under_test.touched == 0


async def test_slow_requests_are_told_and_idle_connections_closed(tmp_path: Path) -> None:
    slow = ServerSettings(head_seconds=0.2, body_silence_seconds=0.2, idle_seconds=0.2)
    async with site(tmp_path, server=slow) as under_test:
        assert parts(await under_test.exchange(b"POST /v1"))[0] == 408
        assert parts(await under_test.exchange(post()[:-3]))[0] == 408
        assert await under_test.exchange(b"") == b""
        assert under_test.touched == 0


async def test_engine_connections_are_reused_and_have_no_delay(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        before = under_test.prefill.connections
        for _ in range(3):
            await under_test.exchange(post())
        assert under_test.prefill.connections - before <= 1
        pool = under_test.router.service.pool
        (idle, *_) = [each for route in pool._routes.values() for each in route.idle]
        assert idle._transport is not None
        sock = idle._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_an_engine_connection_that_grows_old_is_closed_before_the_engine_does(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        await under_test.exchange(post())
        pool = under_test.router.service.pool
        assert any(route.idle for route in pool._routes.values())
        pool.clock = lambda: time.monotonic() + IDLE_SECONDS
        pool.tick()
        assert not any(route.idle for route in pool._routes.values())


async def test_a_pooled_connection_that_turns_out_closed_is_replaced(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:

        async def answer_and_close_on_the_second(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
            if len(under_test.prefill.requests) == 2:
                writer.transport.abort()
            else:
                await default_answer(body, writer)

        under_test.prefill.handler = answer_and_close_on_the_second
        assert parts(await under_test.exchange(post()))[0] == 200
        assert parts(await under_test.exchange(post()))[0] == 200
        assert not under_test.router.service.counters.leg_failures


async def test_an_answer_without_length_ends_with_its_connection(tmp_path: Path) -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        raw = json.dumps({"choices": [{"message": {"content": "to the end"}}]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + raw)
        writer.write_eof()

    async with site(tmp_path) as under_test:
        under_test.decode.handler = answer
        status, _, body = parts(await under_test.exchange(post()))
        assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "to the end")


async def test_an_engine_that_breaks_http_is_a_failed_leg(tmp_path: Path) -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello")

    async with site(tmp_path) as under_test:
        under_test.prefill.handler = answer
        assert parts(await under_test.exchange(post()))[0] == 502


async def test_an_engine_that_never_answers_meets_the_deadline(tmp_path: Path) -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with site(tmp_path, legs=LegSettings(prefill_seconds=0.3)) as under_test:
        under_test.prefill.handler = answer
        assert parts(await under_test.exchange(post()))[0] == 504


async def drip(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """Answer piece by piece, as vLLM lays them out, so that all but the first go by a lane."""
    writer.write(STREAM_HEAD)
    for number in range(12):
        writer.write(event(b'{"choices":[{"index":0,"delta":{"content":"%d "}}]}' % number))
        await asyncio.sleep(0.2)
    writer.write(b"0\r\n\r\n")


async def test_a_stream_whose_pieces_keep_coming_never_falls_silent(tmp_path: Path) -> None:
    async with site(tmp_path, legs=LegSettings(silence_seconds=0.8)) as under_test:
        under_test.decode.handler = drip
        status, _, body = parts(await under_test.exchange(post({**OK_CHAT, "stream": True})))
        assert (status, body.count(b"content"), body.endswith(b"0\r\n\r\n")) == (200, 12, True)


async def test_a_slow_reader_holds_the_engine_back_in_bounded_memory(tmp_path: Path) -> None:
    sent = 0
    piece = event({"choices": [{"index": 0, "delta": {"content": "x" * 20_000}}]})

    async def flood(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(STREAM_HEAD)
        for _ in range(2000):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
        writer.write(b"0\r\n\r\n")

    async with site(tmp_path) as under_test:
        under_test.decode.handler = flood
        reader, writer = await under_test.open()
        writer.write(post({**OK_CHAT, "stream": True}))
        await reader.readexactly(1000)
        last = -1
        while sent != last:
            last = sent
            await asyncio.sleep(0.3)
        assert sent < 2000 * len(piece), "the engine was held back"
        (connection,) = [each for each in under_test.router.service.app.connections if each._write_paused]
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 2 * 1024 * 1024
        rest = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert rest.endswith(b"0\r\n\r\n")
        assert sent == 2000 * len(piece)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_split_of_an_exchange_gives_the_same_answer(tmp_path: Path, data: st.DataObject) -> None:
    streamed = cut(data, post({**OK_CHAT, "stream": True}, close=False))
    whole = cut(data, post(OK_CHAT, "/v1/chat/completions", "x-request-id: b"))
    answered = stream_of("hello \u00e4")
    answer_pieces = cut(data, answered)

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if not body.get("stream"):
            await default_answer(body, writer)
            return
        for piece in answer_pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    async def run() -> list[bytes]:
        async with site(tmp_path) as under_test:
            under_test.decode.handler = answer
            reader, writer = await under_test.open()
            found = []
            for pieces in (streamed, whole):
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0.001)
                found.append(await read_answer(reader))
            writer.close()
            return found

    first, second = asyncio.run(run())
    assert json.dumps("hello \u00e4").encode() in first
    assert b"remote_request_id" not in first + second
    assert parts(second)[0] == 200
    assert json.loads(parts(second)[2])["choices"][0]["message"]["content"] == "hello"


async def test_a_finished_turn_needs_no_garbage_collector(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        gc.collect()
        gc.disable()
        try:
            for _ in range(2):
                await under_test.exchange(post({**OK_CHAT, "stream": True}))
            under_test.decode.handler = drip
            await under_test.exchange(post({**OK_CHAT, "stream": True}))
            await asyncio.sleep(0.05)
            left = [each for each in gc.get_objects() if isinstance(each, Turn | DecodeLeg | UpstreamExchange)]
        finally:
            gc.enable()
        assert left == []
