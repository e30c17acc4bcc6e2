"""What is seen from outside of turns: traces that reach the engines and a collector, the access log, store metrics."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from duplex_connector.proof import Reason
from duplex_router.admin.explain import explain
from duplex_router.admin.stats import stats
from duplex_router.cli import parse_arguments, settings_of
from duplex_router.options import SeenSettings
from duplex_router.turn.offer import Rejection
from duplex_router.turn.outcome import Outcome
from duplex_router.turn.record import LegRecord, TurnRecord
from duplex_router.turn.trace import begin_trace, read_traceparent

from .raw_site import OK_CHAT, parts, post, site
from .rig import until
from .scripted import Stage
from .test_admin import _text
from .turns import FIRST, SECOND

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "wrong",
    [b"", b"x", PARENT[:-1], PARENT + b"-x", b"ff" + PARENT[2:], b"00-" + b"0" * 32 + PARENT[35:], PARENT.upper()],
)
def test_a_malformed_traceparent_is_ignored(wrong: bytes) -> None:
    assert read_traceparent(wrong) == b""


def test_a_traceparent_of_a_later_version_is_passed_on() -> None:
    assert read_traceparent(b"01" + PARENT[2:] + b"-more") == b"01" + PARENT[2:] + b"-more"


def test_a_trace_is_continued_where_the_client_samples_and_begun_for_a_share_of_others() -> None:
    ours = begin_trace(PARENT, sample=0)
    assert ours is not None
    assert (ours.trace_id, ours.parent) == (PARENT[3:35], PARENT[36:52])
    assert read_traceparent(ours.header()) == ours.header() != PARENT
    assert begin_trace(PARENT[:-1] + b"0", sample=1) is None
    assert begin_trace(b"", sample=0) is None
    fresh = begin_trace(b"", sample=1)
    assert fresh is not None
    assert fresh.parent == b""
    assert read_traceparent(fresh.header()) == fresh.header()


class Collector:
    """An OTLP/HTTP collector of a few lines: it decodes what the protocol says and keeps it."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next(int(line.split(": ")[1]) for line in lines if line.startswith("content-length"))
        body = await reader.readexactly(length)
        self.paths.append(lines[0].split(" ")[1])
        self.requests.append(ExportTraceServiceRequest.FromString(body))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    def spans(self) -> list[Any]:
        return [
            span
            for each in self.requests
            for res in each.resource_spans
            for sco in res.scope_spans
            for span in sco.spans
        ]


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


async def test_spans_of_a_turn_and_its_legs_reach_a_collector_and_engines_get_the_trace(tmp_path: Path) -> None:
    async with collector() as collected:
        seen = SeenSettings(traces=f"http://127.0.0.1:{collected.port}/v1/traces", trace_sample=0.0)
        async with site(tmp_path, seen=seen) as under_test:
            await under_test.exchange(post())
            state = f"traceparent: {PARENT.decode()}", "tracestate: a=b"
            status, _, _ = parts(await under_test.exchange(post(OK_CHAT, "/v1/chat/completions", *state)))
            assert status == 200
            await until(lambda: len(collected.spans()) == 3)
            turn, *legs = sorted(collected.spans(), key=lambda span: span.name != "turn /v1/chat/completions")
            assert collected.paths == ["/v1/traces"]
            assert {span.trace_id.hex().encode() for span in collected.spans()} == {PARENT[3:35]}
            assert turn.parent_span_id.hex().encode() == PARENT[36:52]
            assert [leg.parent_span_id for leg in legs] == [turn.span_id] * 2
            assert {leg.name for leg in legs} == {"prefill leg", "decode leg"}
            assert all(turn.start_time_unix_nano <= leg.start_time_unix_nano for leg in legs)
            assert all(leg.end_time_unix_nano <= turn.end_time_unix_nano for leg in legs)
            values = {each.key: each.value for each in turn.attributes}
            assert values["http.response.status_code"].int_value == 200
            for engine in (under_test.prefill, under_test.decode):
                first, second = [headers for path, headers, _ in engine.requests if path == "/v1/chat/completions"]
                assert b"traceparent" not in first
                assert second[b"traceparent"] == b"00-%b-%b-01" % (PARENT[3:35], turn.span_id.hex().encode())
                assert second[b"tracestate"] == b"a=b"


async def test_a_dead_collector_is_not_noticed_by_clients(tmp_path: Path) -> None:
    seen = SeenSettings(traces="http://127.0.0.1:9/v1/traces", trace_sample=1.0)
    async with site(tmp_path, seen=seen) as under_test:
        for _ in range(3):
            status, _, _ = parts(await under_test.exchange(post()))
            assert status == 200


async def test_the_access_log_has_every_bad_turn_and_a_share_of_the_good_ones(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    async with site(tmp_path, seen=SeenSettings(access_log=file, access_log_sample=0.0)) as under_test:
        await under_test.exchange(post())

        async def refuse(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}")

        under_test.prefill.handler = refuse
        await under_test.exchange(post(OK_CHAT, "/v1/chat/completions", "x-request-id: bad-one"))
        await until(lambda: file.exists() and file.read_text().endswith("\n"))
    (line,) = [json.loads(each) for each in file.read_text().splitlines()]
    assert (line["requestId"], line["status"], line["path"]) == ("bad-one", 400, "/v1/chat/completions")
    assert line["time"].endswith("Z")
    assert [leg["leg"] for leg in line["legs"]] == ["prefill"]
    assert "traceId" not in line


async def test_the_access_log_is_written_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    async with site(tmp_path, seen=SeenSettings(access_log=file)) as under_test:
        await under_test.exchange(post())
    assert [json.loads(each)["status"] for each in file.read_text().splitlines()] == [200]


@pytest.mark.parametrize("reason", [*Rejection, *[reason for reason in Reason if reason]])
def test_every_reason_is_explained_in_words(reason: str) -> None:
    record = TurnRecord("r", 0.0, outcome=Outcome("rejected", str(reason)))
    record.legs.append(LegRecord("prefill", "p1", 0.0, 1.0, "timeout"))
    why = explain(record)["why"]
    assert len(why.replace(str(reason), "")) > 60
    assert "the prefill leg on p1 (timeout)" in why


async def test_stats_stay_small_however_large_the_fleet(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        urls = {
            role: [f"http://10.{n // 250}.{n % 250}.{ip}:1" for n in range(2000)]
            for role, ip in (("prefill", 1), ("decode", 2))
        }
        names = [f"revision-{number}" for number in range(20)]
        revisions = [
            {"name": name, "engines": urls if not number else {"prefill": [], "decode": []}}
            for number, name in enumerate(names)
        ]
        under_test.router.write({"model": {"name": "m"}, "revisions": revisions, "canary": {"enabled": False}})
        await until(lambda: len(under_test.router.service.fleet.engines) == 4000)
        assert len(json.dumps(stats(under_test.router.service.state))) < 65536
        page = await asyncio.to_thread(_text, under_test.router.admin + "/metrics")
        assert page.count("\nduplex_router_engine_legs{") == 512


def test_the_command_line_names_store_log_and_traces(tmp_path: Path) -> None:
    line = ["--fleet", "f", "--store", "redis://s:1/2", "--access-log", "-", "--traces", "http://c/v1/traces"]
    settings = settings_of(parse_arguments(line))
    assert settings.store is not None
    assert (settings.store.url, settings.store.prefix) == ("redis://s:1/2", "default")
    assert (settings.seen.access_log, settings.seen.traces) == (Path("-"), "http://c/v1/traces")
    named = parse_arguments(["--namespace", "n", "--serving", "s", "--store-file", str(tmp_path / "url")])
    store = settings_of(named).store
    assert store is not None
    assert store.prefix == "n/s"
    for wrong in (["--store", "http://x"], ["--store", "redis://a", "--store-file", "b"]):
        with pytest.raises(SystemExit):
            parse_arguments(["--fleet", "f", *wrong])


def test_engines_are_called_by_their_pods() -> None:
    stage = Stage(prefill=1, decode=1)
    for key, name in (("p1:1", "chat-prefill-a"), ("d1:1", "chat-decode-b")):
        stage.fleet.engines[key].pod = name
    seen: list[TurnRecord] = []
    stage.core.observers.append(seen.append)
    for messages in (FIRST, SECOND):
        stage.whole_turn(messages)
    found = explain(seen[-1])
    assert (found["prefill"], found["decode"], found["heldBy"]) == ("chat-prefill-a", "chat-decode-b", "chat-decode-b")
