"""Whole routers that share a store: what one served, another reuses, and the store's faults reach no client."""

import asyncio
import contextlib
import signal
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from duplex_router.store.address import StoreSettings

from .rig import CORRUPT, Engines, Message, Router, Said, assistant, fetch, fresh, router, say, say_plain, until, user
from .store_rig import StoreServer, store_server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[StoreServer]:
    async with store_server(tmp_path) as found:
        yield found


@contextlib.asynccontextmanager
async def routers(
    tmp_path: Path, engines: Engines, server: StoreServer, *, count: int = 2, seconds: float = 1.0, leave: bool = False
) -> AsyncIterator[list[Router]]:
    """Run routers that share a store and wait long for it, because this machine may be slow.

    At the end they release all, for the engines serve other tests too; unless they shall `leave` it to others.
    """
    async with contextlib.AsyncExitStack() as stack:
        store = StoreSettings(url=server.url, prefix="test", seconds=seconds)
        made = [
            await stack.enter_async_context(router(tmp_path, engines.document(ttlSeconds=40), store=store))
            for _ in range(count)
        ]
        for each in made:
            await connected(each)
        yield made
        if not leave:
            for each in made:
                each.service.ledger.retire_all()
                each.service.core.keeper.flush()
            await until(lambda: engines.holds() == 0, seconds=60)


async def connected(each: Router) -> None:
    store = each.service.store
    assert store is not None
    await until(lambda: store.link.up)


async def converse(routers: list[Router], messages: list[Message], turns: int, **more: Any) -> list[Said]:
    """Hold a conversation whose turns go to one router after the other; its messages grow in place."""
    said = []
    for turn in range(turns):
        messages.append(user(f"turn {turn}"))
        said.append(await say(routers[turn % len(routers)].client(), messages, **more))
        messages.append(assistant(said[-1].text))
    return said


@pytest.mark.parametrize("stream", [True, False])
async def test_turns_that_alternate_between_routers_pull_the_whole_history(
    guarded: Engines,
    tmp_path: Path,
    server: StoreServer,
    stream: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async with routers(tmp_path, guarded, server) as both:
        messages = fresh()
        said = await converse(both, messages, 4, stream=stream)
        assert [each.reuse for each in said] == ["miss", "full", "full", "full"]
        for number, each in enumerate(said):
            assert each.text == await say_plain(guarded, messages[: 2 * number + 2])
        await until(lambda: guarded.holds() == 1)
        assert sum(len(each.service.ledger) for each in both) == 1, "each hold has one owner"
    assert guarded.corrupt() == 0


async def test_branches_on_two_routers_share_one_hold(guarded: Engines, tmp_path: Path, server: StoreServer) -> None:
    async with routers(tmp_path, guarded, server) as both:
        messages = fresh()
        (one,) = await converse(both[:1], messages, 1)
        branches = [[*messages, user(f"branch {number}")] for number in range(6)]
        said = await asyncio.gather(*[say(both[number % 2].client(), branch) for number, branch in enumerate(branches)])
        assert all(each.tokens["pulled"] > 0 for each in said)
        for branch, each in zip(branches, said, strict=True):
            assert each.text == await say_plain(guarded, branch)
        assert one.text
    assert guarded.corrupt() == 0


async def test_a_router_that_ends_leaves_its_holds_to_the_next_and_without_a_store_releases_them(
    guarded: Engines, tmp_path: Path, server: StoreServer
) -> None:
    messages = fresh()
    async with routers(tmp_path, guarded, server, count=1, leave=True) as (first,):
        await converse([first], messages, 2)
        await until(lambda: guarded.holds() == 1)
    assert guarded.holds() == 1, "nothing is released while the store has it"
    async with routers(tmp_path, guarded, server, count=1) as (second,):
        messages.append(user("after the restart"))
        said = await say(second.client(), messages)
        assert said.reuse == "full"
        assert said.text == await say_plain(guarded, messages)
        await until(lambda: guarded.holds() == 1)
    server.kill()
    async with router(tmp_path, guarded.document()) as alone:
        await say(alone.client(), [*fresh(), user("alone")])
        assert len(alone.service.ledger) == 1
    assert guarded.corrupt() == 0


async def test_a_stock_handle_serves_once_across_routers(stock: Engines, tmp_path: Path, server: StoreServer) -> None:
    async with routers(tmp_path, stock, server) as both:
        for each in both:
            templates = each.service.core.templates
            await until(lambda templates=templates: templates.probed("r1"), seconds=30)  # type: ignore[misc]  # bound now
        for _ in range(3):
            messages = fresh()
            await converse(both[:1], messages, 1, stream=False)
            messages.append(user("next"))
            answers = await asyncio.gather(*[say(each.client(), messages) for each in both])
            assert sum(each.tokens["pulled"] > 0 and each.reuse == "partial" for each in answers) == 1
            assert all(CORRUPT not in each.text for each in answers)
    assert stock.corrupt() == 0


async def test_a_store_that_dies_freezes_and_comes_back_reaches_no_client(
    guarded: Engines, tmp_path: Path, server: StoreServer
) -> None:
    async with routers(tmp_path, guarded, server, seconds=0.02) as both:
        stop = asyncio.Event()
        turns: list[int] = []

        async def chat(number: int) -> None:
            while not stop.is_set():
                messages = fresh()
                for turn in range(3):
                    messages.append(user(f"{number} {turn}", words=5))
                    said = await say(both[(number + turn) % 2].client(), messages, stream=bool(number % 2), tokens=20)
                    assert CORRUPT not in said.text
                    messages.append(assistant(said.text))
                    turns.append(1)

        async def harm() -> None:
            for _ in range(2):
                server.signal(signal.SIGSTOP)
                await asyncio.sleep(0.7)
                server.signal(signal.SIGCONT)
                await asyncio.sleep(0.5)
                server.kill()
                await asyncio.sleep(0.7)
                server.start()
                await server.ready()
                await asyncio.sleep(1)
            stop.set()

        await asyncio.gather(harm(), *[chat(number) for number in range(4)])
        assert len(turns) > 8
        stats = [await asyncio.to_thread(fetch, each.admin + "/stats") for each in both]
        assert sum(each["turns"] for each in stats) >= len(turns)
        for each in both:
            await connected(each)
        said = await converse(both, fresh(), 2)
        assert said[1].reuse == "full", "the store is used again"
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(both[1].admin + "/metrics", timeout=5).read())  # noqa: S310 - loopback
        assert b"duplex_router_store_up 1" in page
        assert b'duplex_router_store_lookups_total{outcome="hit"}' in page
    assert guarded.corrupt() == 0
