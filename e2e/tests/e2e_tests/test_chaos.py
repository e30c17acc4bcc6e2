"""The harness must notice: each kind of violation is one, and what a fault explains is none."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from chaos.account import Account, Sample, check_memory, slope
from chaos.engine import Tally
from chaos.faults import Faults, Window
from chaos.loopback import HOST
from chaos.relay import Relay
from chaos.router import Router
from chaos.site import Site
from chaos.talk import Talk
from duplex_connector.contract import ConnectorKind

MESSAGES = [{"role": "user", "content": "the of and to"}]


class FakeRouter:
    """Answers every turn as a test says; explains all by one decode engine."""

    def __init__(self) -> None:
        self.status = 200
        self.say = "{}"
        self.tail = "data: [DONE]\n\n"
        self.more: dict[str, Any] = {}

    async def text(self, body: dict[str, Any]) -> str:
        return f"What follows {body['messages'][-1]['content']}."

    async def turn(self, request: web.Request) -> web.Response:
        body = await request.json()
        text = self.say.format(await self.text(body))
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        if not body["stream"]:
            if "error" in self.tail:
                return web.json_response({"error": {"message": "no"}}, status=502)
            return web.json_response({"choices": [{"message": {"content": text}}], **self.more})
        event = {"choices": [{"delta": {"content": text}}], **self.more}
        return web.Response(text=f"data: {json.dumps(event)}\n\n{self.tail}", content_type="text/event-stream")

    async def explain(self, _: web.Request) -> web.Response:
        return web.json_response({"decode": "d1"})


@pytest.fixture
async def router() -> AsyncIterator[tuple[FakeRouter, Talk]]:
    fake = FakeRouter()
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", fake.turn), web.get("/explain/{id}", fake.explain)])
    runner = web.AppRunner(app)
    await runner.setup()
    listener = web.TCPSite(runner, HOST, 0)
    await listener.start()
    port = runner.addresses[0][1]
    routers = [Router(name, Path(), port=port, admin=port) for name in ("one", "other")]
    site = Site(ConnectorKind.GUARDED, Path(), (), 10.0, routers=routers)
    async with aiohttp.ClientSession() as session:
        faults = Faults(site, session, random.Random(0), 1.0)  # noqa: S311 - seeded on purpose
        yield fake, Talk(site, fake, faults, Account(), session, random.Random(0), "c")  # noqa: S311 - seeded on purpose
    await runner.cleanup()


async def several(talk: Talk) -> Account:
    """Ask until both streamed and whole answers have come."""
    for _ in range(8):
        await talk._ask(MESSAGES, {})
    return talk.account


async def test_right_answers_are_none(router: tuple[FakeRouter, Talk]) -> None:
    account = await several(router[1])
    assert account.violations == []
    assert account.turns["answered"] > 4


@pytest.mark.parametrize("say", ["{} and more", "wrong", ""])
async def test_wrong_answers_are_violations(router: tuple[FakeRouter, Talk], say: str) -> None:
    fake, talk = router
    fake.say = say
    account = await several(talk)
    assert len(account.violations) >= account.turns["answered"] > 4
    assert "wrong" in account.violations[0]


async def test_a_handle_in_an_answer_is_one(router: tuple[FakeRouter, Talk]) -> None:
    fake, talk = router
    fake.more = {"kv_transfer_params": {"remote_host": "x"}}
    account = await several(talk)
    assert any("handle" in each for each in account.violations)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_an_error_before_the_first_byte_is_one(router: tuple[FakeRouter, Talk], status: int) -> None:
    fake, talk = router
    fake.status = status
    account = await several(talk)
    assert account.turns[f"status {status}"] == len(account.violations) > 4


async def test_a_broken_stream_is_one_unless_its_engine_was_hit_meanwhile(router: tuple[FakeRouter, Talk]) -> None:
    fake, talk = router
    fake.tail = 'data: {"error": {"message": "gone"}}\n\n'
    while not talk.account.turns["broken"]:
        await talk._ask(MESSAGES, {})
    assert "without a fault" in talk.account.violations[-1]
    before = len(talk.account.violations)
    talk.faults.windows.append(Window("d2", "kill", 0.0))
    talk.faults.windows.append(Window("d1", "kill", 0.0))
    while not talk.account.breaks:
        await talk._ask(MESSAGES, {})
    assert talk.account.breaks[0]["engine"] == "d1"
    assert len([each for each in talk.account.violations[before:] if "without a fault" in each]) == 0


@pytest.mark.parametrize(
    ("begin", "end", "hit"), [(5.0, 9.0, True), (1.0, 2.0, False), (21.0, 22.0, False), (19.0, 30.0, True)]
)
def test_a_fault_explains_only_what_was_under_way(begin: float, end: float, hit: bool) -> None:  # noqa: FBT001 - a parameter of the test
    faults = Faults(None, None, random.Random(0), 1.0)  # type: ignore[arg-type]  # neither is needed here  # noqa: S311 - seeded on purpose
    faults.windows.append(Window("d1", "freeze", 4.0, 20.0))
    assert (faults.explains(begin, end, {"d1"}) is not None) is hit
    assert faults.explains(begin, end, {"d2"}) is None


def test_growing_memory_is_a_violation_and_steady_memory_is_not() -> None:
    account = Account()
    grows = [Sample(turns / 2, turns, 70_000 + turns * 4) for turns in range(0, 600, 2)]
    warms_up = [Sample(turns / 2, turns, 70_000 + min(turns, 300) * 4) for turns in range(0, 600, 2)]
    assert check_memory(account, "one", warms_up, warm_up=150) == pytest.approx(0)
    assert check_memory(account, "one", grows[:100], warm_up=50) is None
    assert account.violations == []
    assert check_memory(account, "other", grows, warm_up=150) == pytest.approx(4000)
    assert account.violations == ["the memory of other grows by 4000 kB in 1,000 turns"]


async def test_clients_use_every_router(router: tuple[FakeRouter, Talk]) -> None:
    await several(router[1])
    assert all(each.turns for each in router[1].site.routers)


def test_a_count_is_kept_over_lives_without_what_is_explained() -> None:
    tally = Tally()
    tally.take(2)
    tally.take(5, explained=True)
    tally.take(6)
    tally.seen = 0
    tally.take(4)
    assert tally.total == 7


def test_a_slope_is_that_of_the_line() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2)
    assert slope([(0, 1)]) == 0


async def test_a_relay_resets_refuses_and_listens_again_on_its_port() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, HOST, 0)
    relay = Relay(server.sockets[0].getsockname()[1])
    await relay.listen()
    port = relay.port
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    assert relay.reset() == 1
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    relay.refuse()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HOST, port)
    await relay.listen()
    assert relay.port == port
    await relay.close()
    server.close()
