"""What is seen from outside: readiness, metrics that a scraper takes, what engines' metrics say, the template probe."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from duplex_connector.contract import Role
from duplex_router.admin.canary import Canary
from duplex_router.admin.probe import PLAIN_SHAPES, TOOL_SHAPES, prompts_of, slack_of
from duplex_router.admin.recent import STEP_SECONDS, WINDOW_SECONDS, RecentReuse, Reuse
from duplex_router.admin.scrape import Scraper, backend, bytes_moved, kv_bytes_per_token, kv_tokens, kv_use, samples
from duplex_router.cli import parse_arguments, settings_of
from duplex_router.fleet.document import convert_document
from duplex_router.fleet.pairs import Way
from duplex_router.turn.counters import Counters
from duplex_router.turn.record import Explanations, TurnRecord

from .raw_site import post, site
from .rig import Engines, fetch, free_port, fresh, router, say, until, user

PAGE = """# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="100"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:nixl_bytes_transferred_sum{engine="0",model_name="a \\"b\\""} 1.5e+06
vllm:nixl_bytes_transferred_count{engine="0"} 2
vllm:duplex_transport_info{backend="UCX"} 1
vllm:duplex_kv_bytes_per_token{engine="0"} 262144.0
broken line
vllm:nan NaN
"""


def test_an_engines_page_is_read() -> None:
    assert kv_tokens(samples(PAGE)) == 1600
    assert kv_use(samples(PAGE)) == 0.5
    assert kv_use(samples("")) is None
    assert bytes_moved(samples(PAGE)) == 1_500_000
    assert kv_bytes_per_token(samples(PAGE)) == 262_144
    assert backend(samples(PAGE)) == "UCX"
    assert {name: labels for name, labels, _ in samples(PAGE)}["vllm:nixl_bytes_transferred_sum"] == {
        "engine": "0",
        "model_name": 'a \\"b\\"',
    }


@pytest.mark.parametrize(
    "page",
    ["", "vllm:duplex_kv_bytes_per_token 0.0", 'vllm:cache_config_info{num_gpu_blocks="None",block_size="16"} 1'],
)
def test_an_engine_that_does_not_say_its_size_has_none(page: str) -> None:
    assert kv_tokens(samples(page)) is None
    assert kv_bytes_per_token(samples(page)) is None


@pytest.mark.parametrize(
    ("prompts", "slack"),
    [
        ([[1, 2], [1, 2, 3]], 0),
        ([[1, 2, 9], [1, 2, 3, 4]], 1),
        ([[1], [1, 2, 9], [1, 2, 3, 4]], 1),
        ([[9] * 40, [8] * 50], None),
        ([[1, 2, 3], [1, 2]], 1),
    ],
)
def test_slack_is_what_differs_at_a_prompts_end(prompts: list[list[int]], slack: int | None) -> None:
    assert slack_of(prompts) == slack


def test_the_probes_prompts_are_those_that_a_model_may_be_asked() -> None:
    for shape in PLAIN_SHAPES:
        prompts = prompts_of(shape, tools=False)
        assert len(prompts) >= 2
        assert all(prompt[-1]["role"] == "user" for prompt in prompts)
    for shape in TOOL_SHAPES:
        prompts = prompts_of(shape, tools=True)
        assert {prompt[-1]["role"] for prompt in prompts} >= {"user", "tool", "assistant"}


def test_explanations_are_bounded() -> None:
    kept = Explanations(limit=2)
    for number in range(5):
        kept.add(TurnRecord(str(number), 0.0))
    assert kept.get("1") is None
    for number in ("3", "4"):
        found = kept.get(number)
        assert found is not None
        assert found.request_id == number


async def status_of(url: str) -> int:
    def read() -> int:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - loopback, http
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    return await asyncio.to_thread(read)


async def test_ready_once_there_is_a_document_and_no_longer_when_draining(tmp_path: Path) -> None:
    async with router(tmp_path, None) as under_test:
        assert await status_of(under_test.admin + "/healthz") == 200
        assert await status_of(under_test.admin + "/readyz") == 503
        stats = await asyncio.to_thread(fetch, under_test.admin + "/stats")
        assert stats["fleetVersion"] is None
        assert "cannot be read" in stats["fleetMessage"]
        under_test.write({"model": {"name": "m"}, "revisions": []})
        await until(lambda: under_test.service.fleet.document is not None)
        assert await status_of(under_test.admin + "/readyz") == 200
        under_test.service.state.draining = True
        assert await status_of(under_test.admin + "/readyz") == 503
        assert await status_of(under_test.admin + "/nothing") == 404
        assert await status_of(under_test.admin + "/explain/unknown") == 404


async def test_statistics_name_broken_pairs_and_since_when(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        fleet = under_test.router.service.fleet
        before = time.time()
        prefill, decode = (fleet.ready("r", role)[0].key for role in Role)
        fleet.transfer_failed(prefill, decode, Way.PULL)
        assert (await asyncio.to_thread(fetch, under_test.router.admin + "/stats"))["brokenPairs"] == []
        fleet.transfer_failed(prefill, decode, Way.PULL)
        (pair,) = (await asyncio.to_thread(fetch, under_test.router.admin + "/stats"))["brokenPairs"]
        assert (pair["prefill"], pair["decode"], pair["failures"]) == (prefill, decode, 2)
        assert before - 1 < pair["since"] < time.time() + 1


async def test_an_engine_that_does_not_answer_the_scraper_rests(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        service = under_test.router.service
        document = {
            "model": {"name": "m"},
            "revisions": [{"name": "r", "engines": {"prefill": [f"http://127.0.0.1:{free_port()}"], "decode": []}}],
        }
        service.fleet.take_document(convert_document(document))
        await Scraper(service.state).once()
        (engine,) = service.fleet.engines.values()
        assert engine.resting_until > service.core.clock()


async def test_metrics_are_prometheus_text_and_count_the_turn(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        await under_test.exchange(post())
        page = await asyncio.to_thread(_text, under_test.router.admin + "/metrics")
        found: dict[tuple[str, str], float] = {}
        for name, labels, value in samples(page):
            found[name, json.dumps(labels)] = value
        assert found["duplex_router_turns_total", "{}"] == 1
        assert found["duplex_router_answers_total", '{"status": "200"}'] == 1
        assert found["duplex_router_holds", "{}"] == 1
        assert found["duplex_router_held_tokens", "{}"] == 40
        assert found["duplex_router_first_byte_seconds_count", '{"outcome": "miss"}'] == 1
        assert found["duplex_router_engines_ready", '{"revision": "r", "role": "prefill"}'] == 1
        lines = [line for line in page.splitlines() if not line.startswith("#")]
        assert len(lines) == len(found), "every line is a sample, none twice"


def _text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - loopback, http
        return str(answer.read(), "utf-8")


async def test_the_canary_runs_by_itself_serves_tokens_and_leaves_no_hold(guarded: Engines, tmp_path: Path) -> None:
    document: dict[str, Any] = {**guarded.document(), "canary": {"enabled": True, "intervalSeconds": 3600}}
    async with router(tmp_path, document) as under_test:
        canaries = under_test.service.state.canaries
        await until(lambda: "r1" in canaries and canaries["r1"].last_success is not None, seconds=30)
        stats = await asyncio.to_thread(fetch, under_test.admin + "/stats")
        canary = stats["revisions"]["r1"]["canary"]
        assert (canary["reused"], canary["failures"]) == (True, 0)
        assert stats["revisions"]["r1"]["servedTokens"] > 1
        await Scraper(under_test.service.state).once()
        stats = await asyncio.to_thread(fetch, under_test.admin + "/stats")
        assert stats["revisions"]["r1"]["bytesMoved"] == stats["transport"]["bytesMoved"] > 0
        await until(lambda: guarded.holds() == 0)
        assert stats["turns"] == stats["inFlight"] == 0, "clients have asked for nothing yet"
        assert {name: count for name, count in stats["reuse"].items() if count} == {}
        await say(under_test.client(), [*fresh(), user("one")])
        stats = await asyncio.to_thread(fetch, under_test.admin + "/stats")
        assert (stats["turns"], stats["reuse"]["eligible"], stats["reuse"]["missed"]) == (1, 0, 1)
        retention = stats["retention"]
        assert (retention["renewable"], retention["conversations"]) == (True, 1)
        holder, other = retention["engines"]
        assert (holder["conversations"], other["conversations"]) == (1, 0)
        assert holder["tokens"] == retention["tokens"] > 100
        assert holder["budgetTokens"] == 8192 * 16 // 2
        load = stats["loads"][holder["name"]]
        assert (load["legs"], load["tokens"]) == (0, holder["tokens"])
        assert 0 < load["value"] < load["tokens"]
        assert other["name"] not in stats["loads"]


async def test_a_failing_canary_is_counted_while_no_client_is_served(tmp_path: Path) -> None:
    nobody = [f"http://127.0.0.1:{free_port()}"]
    document = {
        "model": {"name": "m"},
        "revisions": [{"name": "r1", "engines": {"prefill": nobody, "decode": nobody}}],
        "canary": {"enabled": False},
    }
    async with router(tmp_path, document) as under_test:
        state = under_test.service.state
        await until(lambda: state.core.fleet.document is not None)
        now = state.core.fleet.document
        assert now is not None
        canary = Canary(state, time.time)
        for failures in (1, 2):
            assert not await canary.once(now, "r1")
            stats = await asyncio.to_thread(fetch, under_test.admin + "/stats")
            told = stats["revisions"]["r1"]["canary"]
            assert (told["failures"], told["lastSuccess"]) == (failures, None)
            assert "HTTP 50" in told["message"]
        under_test.service.counters.revision("r1").served_tokens += 5  # as a client's turn does
        assert not await canary.once(now, "r1")
        assert state.canaries["r1"].failures == 1


def test_what_reuse_came_to_of_late_forgets_what_is_older_than_the_window() -> None:
    counters, recent = Counters(), RecentReuse(begun=1000.0)
    counters.eligible, counters.full = 5, 4
    for minute in range(1, 15):
        recent.sample(counters, 1000.0 + 60 * minute)
    assert recent.since(counters, 1850.0) == (850.0, Reuse(5, 4, 0, Counter()))
    for minute in range(15, 50):
        if minute == 40:
            counters.eligible, counters.partial = 7, 1
            counters.rejected["diverged"] += 1
        recent.sample(counters, 1000.0 + 60 * minute)
    seconds, reuse = recent.since(counters, 1000.0 + 60 * 50)
    assert seconds >= WINDOW_SECONDS - STEP_SECONDS
    assert reuse == Reuse(2, 0, 1, Counter({"diverged": 1}))
    for minute in range(50, 100):
        recent.sample(counters, 1000.0 + 60 * minute)
    assert recent.since(counters, 1000.0 + 60 * 100)[1] == Reuse(0, 0, 0, Counter())


def test_the_command_line_is_checked() -> None:
    for wrong in ([], ["--fleet", "f", "--serving", "s", "--namespace", "n"], ["--serving", "s"]):
        with pytest.raises(SystemExit):
            parse_arguments(wrong)
    settings = settings_of(parse_arguments(["--fleet", "f", "--port", "0", "--prefill-seconds", "3"]))
    assert (settings.port, settings.legs.prefill_seconds) == (0, 3.0)
