"""What a stopping engine waits for: requests, holds and hand-offs, and no longer than its time."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from duplex_connector.leaving import NOTICE_SECONDS, POLL_SECONDS, Look, judge, look_at, main, wait


def page(running: float = 0, waiting: float = 0, usage: float = 0.0, *, rank: int = 0) -> str:
    labels = f'{{engine="{rank}",model_name="m"}}'
    return (
        f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} {running}\n"
        f"vllm:num_requests_waiting{labels} {waiting}\nvllm:kv_cache_usage_perc{labels} {usage}\n"
        f'vllm:num_requests_waiting_by_reason{{reason="capacity"}} 3\n'
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (page(), Look.QUIET),
        (page(running=1), Look.IN_USE),
        (page(waiting=1), Look.IN_USE),
        (page(usage=1e-5), Look.IN_USE),  # one block of a hundred thousand
        (page() + page(usage=0.5, rank=1), Look.IN_USE),
        ("", Look.UNKNOWN),
        ("vllm:num_requests_running 0.0\n", Look.UNKNOWN),
    ],
)
def test_judged_by_its_own_metrics(text: str, found: Look) -> None:
    assert judge(text) is found


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def waited(looks: list[Look], seconds: float = 60) -> tuple[Look, float]:
    """Return what was found last, and how long it took; the last look is what is found from then on."""
    clock, each = Clock(), iter(looks)
    last = looks[-1]
    return wait(seconds, lambda: next(each, last), now=clock.now, sleep=clock.sleep), clock.time


def test_it_ends_once_nothing_is_left_and_routers_have_heard() -> None:
    assert waited([Look.QUIET]) == (Look.QUIET, NOTICE_SECONDS + POLL_SECONDS)
    busy = [Look.IN_USE] * 10
    assert waited([*busy, Look.QUIET]) == (Look.QUIET, NOTICE_SECONDS + 11 * POLL_SECONDS)


def test_one_quiet_look_is_not_enough() -> None:
    found, seconds = waited([Look.QUIET, Look.IN_USE, Look.QUIET, Look.QUIET, Look.IN_USE])
    assert (found, seconds) == (Look.QUIET, NOTICE_SECONDS + 3 * POLL_SECONDS)


def test_it_ends_with_its_time_and_at_once_where_the_engine_has_ended() -> None:
    assert waited([Look.IN_USE]) == (Look.IN_USE, NOTICE_SECONDS + 60)
    assert waited([Look.UNKNOWN]) == (Look.UNKNOWN, NOTICE_SECONDS + 60), "it may be in use"
    assert waited([Look.IN_USE], seconds=0) == (Look.IN_USE, NOTICE_SECONDS)
    assert waited([Look.GONE]) == (Look.GONE, NOTICE_SECONDS)


@pytest.fixture
def engine() -> Iterator[tuple[int, dict[str, tuple[int, str]]]]:
    """Serve pages on a port of this machine."""
    answers = {"/metrics": (200, page())}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answers[self.path]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, answers
        server.shutdown()


def test_it_asks_over_http(engine: tuple[int, dict[str, tuple[int, str]]]) -> None:
    port, answers = engine
    assert look_at(port) is Look.QUIET
    answers["/metrics"] = (200, page(usage=0.25))
    assert look_at(port) is Look.IN_USE
    answers["/metrics"] = (500, page())
    assert look_at(port) is Look.UNKNOWN


def test_a_proxy_in_the_environment_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, engine: tuple[int, dict[str, tuple[int, str]]]
) -> None:
    # Where nobody listens at the proxy's address, an engine in use would be taken for one that has ended.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        engine[1]["/metrics"] = (200, page(usage=0.25))
        assert look_at(engine[0]) is Look.IN_USE


@pytest.mark.parametrize("raw", [b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nvllm"])
def test_an_answer_that_is_none_does_not_end_the_wait(raw: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(4096)
                client.sendall(raw)

        answering = threading.Thread(target=answer)
        answering.start()
        assert look_at(server.getsockname()[1]) is Look.UNKNOWN
        answering.join()


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert look_at(free.getsockname()[1]) is Look.GONE


def test_the_program_ends_well(monkeypatch: pytest.MonkeyPatch, engine: tuple[int, object]) -> None:
    monkeypatch.setattr("duplex_connector.leaving.NOTICE_SECONDS", 0)
    monkeypatch.setattr("duplex_connector.leaving.POLL_SECONDS", 0)
    assert main(["30", "--port", str(engine[0])]) == 0
