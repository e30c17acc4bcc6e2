"""Engines that die, freeze or start anew, and clients that leave: right answers, and no hold without an owner."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duplex_connector.contract import ConnectorKind, Role
from duplex_router.admin.scrape import Scraper
from duplex_router.turn.core import LegSettings

from .rig import (
    CORRUPT,
    Engines,
    Message,
    Router,
    assistant,
    fresh,
    launch,
    router,
    running,
    say,
    until,
    user,
)

LEASE = 10
"""Seconds: what a leg that was cut off might still read is not released, so that it ends with its lease."""


@pytest.fixture(scope="module")
def mortal() -> Iterator[Engines]:
    """Run engines that tests of this module may kill, as long as they restart them."""
    flags = ("--no-enable-prefix-caching",)
    prefill = [launch(Role.PREFILL, ConnectorKind.GUARDED, *flags) for _ in range(2)]
    decode = [launch(Role.DECODE, ConnectorKind.GUARDED, *flags) for _ in range(2)]
    with running(*prefill, *decode):
        yield Engines(ConnectorKind.GUARDED, prefill, decode)


@pytest.fixture(scope="module")
def slow() -> Iterator[Engines]:
    """Run engines that take a real engine's time."""
    flags = ("--no-enable-prefix-caching", "--sim-profile", "qwen3-32b-p5en", "--sim-time-scale", "4")
    prefill, decode = (launch(role, ConnectorKind.GUARDED, *flags) for role in (Role.PREFILL, Role.DECODE))
    with running(prefill, decode):
        yield Engines(ConnectorKind.GUARDED, [prefill], [decode])


def by_url(engines: Engines, key: str) -> Any:
    return next(engine for engine in engines.all if engine.url.endswith(key))


async def two_turns(under_test: Router) -> tuple[list[Message], str]:
    client, messages = under_test.client(), [*fresh(), user("first")]
    one = await say(client, messages)
    messages += [assistant(one.text), user("second")]
    return messages, one.text


async def test_a_killed_decode_engine_costs_one_recompute(mortal: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, mortal.document()) as under_test:
        messages, _ = await two_turns(under_test)
        (entry,) = under_test.service.ledger
        victim = by_url(mortal, entry.engine)
        victim.kill()
        try:
            said = await say(under_test.client(), messages, stream=True)
            assert CORRUPT not in said.text
            assert said.tokens["pulled"] == 0
        finally:
            victim.restart()
    assert mortal.corrupt() == 0
    assert mortal.holds() == 0


async def test_a_restarted_decode_engine_has_its_old_handles_dropped(mortal: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, mortal.document()) as under_test:
        messages, _ = await two_turns(under_test)
        (entry,) = under_test.service.ledger
        by_url(mortal, entry.engine).restart()
        said = await say(under_test.client(), messages)
        assert CORRUPT not in said.text
        assert said.tokens["pulled"] == 0
        assert entry not in set(under_test.service.ledger)
        messages += [assistant(said.text), user("third")]
        assert (await say(under_test.client(), messages)).reuse == "full"
    assert mortal.corrupt() == 0
    assert mortal.holds() == 0


async def test_a_restarted_decode_engine_is_noticed_before_a_turn_asks_it_for_what_it_held(
    mortal: Engines, tmp_path: Path
) -> None:
    async with router(tmp_path, mortal.document()) as under_test:
        await say(under_test.client(), [*fresh(), user("one")])
        (entry,) = under_test.service.ledger
        scraper = Scraper(under_test.service.state)
        await scraper.once()
        assert len(under_test.service.ledger) == 1
        by_url(mortal, entry.engine).restart()
        under_test.service.fleet.engines[entry.engine].failed(under_test.service.core.clock())
        await scraper.look_again()
        assert len(under_test.service.ledger) == 0
        assert under_test.service.counters.holds_ended["boot"] == 1


async def test_what_a_restarted_decode_engine_holds_by_now_is_kept(mortal: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, mortal.document()) as under_test:
        await say(under_test.client(), [*fresh(), user("one")])
        (entry,) = under_test.service.ledger
        scraper = Scraper(under_test.service.state)
        await scraper.once()
        for engine in mortal.decode:
            engine.restart()
        while not any(each.engine == entry.engine and each is not entry for each in under_test.service.ledger):
            await say(under_test.client(), [*fresh(), user("other")])
        held = [each for each in under_test.service.ledger if each.engine == entry.engine]
        await scraper.once()
        assert [each for each in under_test.service.ledger if each.engine == entry.engine] == held
        assert entry not in held


async def test_a_killed_prefill_engine_is_replaced_within_the_turn(mortal: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, mortal.document(leaseSeconds=LEASE)) as under_test:
        messages, _ = await two_turns(under_test)
        (entry,) = under_test.service.ledger
        victim = by_url(mortal, entry.prefill)
        victim.kill()
        try:
            said = await say(under_test.client(), messages, stream=True)
            assert said.reuse == "full", "the other prefill engine uses the same handle"
        finally:
            victim.restart()
    assert mortal.corrupt() == 0
    await until(lambda: mortal.holds() == 0, 3 * LEASE)


async def test_a_frozen_prefill_engine_meets_the_deadline(mortal: Engines, tmp_path: Path) -> None:
    async with router(
        tmp_path, mortal.document(leaseSeconds=LEASE), legs=LegSettings(prefill_seconds=2.0)
    ) as under_test:
        messages, _ = await two_turns(under_test)
        (entry,) = under_test.service.ledger
        victim = by_url(mortal, entry.prefill)
        victim.signal(signal.SIGSTOP)
        try:
            said = await say(under_test.client(), messages)
            assert said.reuse == "rejected;reason=prefill-failed", "it might have been the pull that hung"
            assert under_test.service.counters.leg_failures["prefill", "timeout"] == 1
        finally:
            victim.signal(signal.SIGCONT)
    await until(lambda: mortal.holds() == 0, 3 * LEASE)
    assert mortal.corrupt() == 0


async def test_a_frozen_decode_engine_costs_both_legs_once_more(mortal: Engines, tmp_path: Path) -> None:
    async with router(
        tmp_path, mortal.document(leaseSeconds=LEASE), legs=LegSettings(decode_seconds=2.0)
    ) as under_test:
        messages, text = await two_turns(under_test)
        (entry,) = under_test.service.ledger
        victim = by_url(mortal, entry.engine)
        victim.signal(signal.SIGSTOP)
        try:
            said = await say(under_test.client(), messages[:-2], stream=True)
            assert said.text == text
        finally:
            victim.signal(signal.SIGCONT)
    await until(lambda: mortal.holds() == 0, 3 * LEASE)
    assert mortal.corrupt() == 0


async def test_an_expired_hold_is_not_asked_for(mortal: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, mortal.document(ttlSeconds=7)) as under_test:
        messages, _ = await two_turns(under_test)
        await asyncio.sleep(1.2)  # 7 s less the margin of 6
        said = await say(under_test.client(), messages)
        assert said.reuse == "rejected;reason=expired"
    assert mortal.holds() == 0
    assert mortal.corrupt() == 0


async def raw_request(under_test: Router, messages: list[Message], *, stream: bool, tokens: int) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", under_test.service.port)
    body = json.dumps(
        {"model": "model", "messages": messages, "max_tokens": tokens, "stream": stream, "ignore_eos": True}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def nothing_left(under_test: Router, engines: Engines, *, holds: int = 0) -> None:
    await until(lambda: under_test.service.counters.in_flight == 0)
    await until(lambda: all(not any(engine.state()["requests"].values()) for engine in engines.all))
    await until(lambda: engines.holds() == holds)


async def test_a_client_that_leaves_during_prefill(slow: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, slow.document()) as under_test:
        _, writer = await raw_request(under_test, [*fresh(), user("one", words=6000)], stream=True, tokens=50)
        await until(lambda: slow.prefill[0].state()["requests"]["running"] == 1)
        writer.transport.abort()
        await nothing_left(under_test, slow)
        assert under_test.service.counters.clients_gone["prefill"] == 1


async def test_a_client_that_leaves_during_the_stream(slow: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, slow.document()) as under_test:
        reader, writer = await raw_request(under_test, [*fresh(), user("one")], stream=True, tokens=2000)
        await reader.readuntil(b"data: ")
        writer.transport.abort()
        await nothing_left(under_test, slow)
        assert under_test.service.counters.clients_gone["stream"] == 1


async def test_a_client_that_leaves_an_unstreamed_answer(slow: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, slow.document()) as under_test:
        _, writer = await raw_request(under_test, [*fresh(), user("one")], stream=False, tokens=2000)
        await until(lambda: slow.decode[0].state()["requests"]["running"] == 1)
        writer.transport.abort()
        await nothing_left(under_test, slow)
        assert under_test.service.counters.clients_gone["decode"] == 1


async def test_a_client_that_leaves_keeps_its_earlier_hold(slow: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, slow.document()) as under_test:
        messages, _ = await two_turns(under_test)
        reader, writer = await raw_request(under_test, messages, stream=True, tokens=2000)
        await reader.readuntil(b"data: ")
        writer.transport.abort()
        await nothing_left(under_test, slow, holds=1)


async def test_a_turn_that_is_cut_by_a_dead_decode_engine_says_so(mortal: Engines, tmp_path: Path) -> None:
    engines = Engines(mortal.kind, mortal.prefill, mortal.decode[:1])
    async with router(tmp_path, engines.document()) as under_test:
        reader, writer = await raw_request(under_test, [*fresh(), user("one")], stream=True, tokens=20000)
        await reader.readuntil(b"data: ")
        mortal.decode[0].kill()
        try:
            rest = await reader.read()
            assert b'"error"' in rest
            assert not rest.endswith(b"0\r\n\r\n"), "the client must see that the answer is not complete"
        finally:
            writer.close()
            mortal.decode[0].restart()
    assert mortal.holds() == 0


async def test_sigterm_waits_for_turns_and_releases_every_hold(slow: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, slow.document()) as under_test:
        await two_turns(under_test)
        turn = asyncio.create_task(say(under_test.client(), [*fresh(), user("late")], stream=True, tokens=60))
        await until(lambda: slow.decode[0].state()["requests"]["running"] == 1)
        stopping = asyncio.create_task(under_test.service.stop())
        said = await turn
        assert said.finish == "length"
        await stopping
        assert slow.holds() == 0
