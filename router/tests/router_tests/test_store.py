"""The shared ledger's parts: the address, the link to a real server, and what each script guarantees."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from duplex_lab.certificates import Authority
from duplex_router.ledger.fates import Fate
from duplex_router.ledger.ledger import Entry, Ledger
from duplex_router.store.address import Address, StoreAddressError, StoreSettings, parse_address
from duplex_router.store.depths import chosen_depths
from duplex_router.store.link import Nothing
from duplex_router.store.shared import StoreLedger

from .rig import free_port, until
from .store_rig import StoreServer, store_server
from .test_history import ASK, chat
from .test_ledger import NEXT, REPLY, TENANT, anyone, entry_of

MORE = {"role": "user", "content": "More?"}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://store", Address("store")),
        ("valkey://u%40x:p%2Fw@store:7000/3", Address("store", 7000, "u@x", "p/w", 3)),
        ("rediss://:secret@[::1]:1/", Address("::1", 1, password="secret", tls=True)),
    ],
)
def test_an_address_is_read(url: str, address: Address) -> None:
    assert parse_address(url) == address
    assert "p/w" not in str(address)


@pytest.mark.parametrize("url", ["", "http://x", "redis://", "redis://x:port", "redis://x/a", "redis://x/0?y=1"])
def test_a_wrong_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(StoreAddressError) as caught:
        parse_address(url.replace("//", "//:hunter2@", 1))
    assert "hunter2" not in str(caught.value)


def test_a_missing_address_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreAddressError, match="cannot be read"):
        StoreSettings(url_file=tmp_path / "none").address()


def test_few_depths_of_a_long_history_are_chosen_and_all_of_a_short_one() -> None:
    assert chosen_depths(3, 64) == [3, 2, 1]
    many = chosen_depths(100_000, 64)
    assert many[:64] == list(range(100_000, 99_936, -1))
    assert len(many) == 128
    assert set(chosen_depths(1000, 32)) & set(chosen_depths(1200, 64)), "both ends meet at the same far depths"
    assert all(depth % 16 == 0 for depth in many[64:])


class Replica:
    """One router's side of the store, without the rest of a router."""

    def __init__(self, url: str, *, guarded: bool, pull_seconds: float = 20.0, seconds: float = 1.0) -> None:
        self.ledger = Ledger(time.monotonic)
        settings = StoreSettings(url=url, prefix="t", seconds=seconds)
        self.shared = StoreLedger(
            settings,
            self.ledger,
            time.monotonic,
            guarded=lambda: guarded,
            retired=lambda: None,
            pull_seconds=pull_seconds,
        )
        self.freed: list[Entry] = []
        self.task = asyncio.create_task(self.shared.run())

    async def up(self) -> "Replica":
        await until(lambda: self.shared.link.up and self.ledger.shared_until > time.monotonic())
        return self

    async def down(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def find(self, *messages: Any, tenant: bytes = TENANT) -> Entry | None:
        future: asyncio.Future[Entry | None] = asyncio.get_running_loop().create_future()
        self.shared.find(chat(*messages), tenant, future.set_result)
        return await future

    async def claim(self, entry: Entry) -> bool:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.shared.claim(entry, future.set_result)
        return await future

    def keep(self, *messages: Any, **changes: Any) -> Entry:
        now = time.monotonic()
        given = {"created": now, "deadline": now + 100, **changes}
        entry = entry_of(chat(*messages), **given)
        self.ledger.add(entry)
        self.shared.publish(entry)
        return entry

    async def settled(self) -> None:
        """Wait until all that was told has been answered."""
        await asyncio.sleep(0)
        await self.shared.link.command(b"PING")

    def release(self, entry: Entry) -> None:
        self.ledger.retire(entry, Fate.REPLACED)
        due = self.ledger.due_releases()
        self.shared.withdraw(due, self.freed.extend)


@contextlib.asynccontextmanager
async def replicas(
    server: StoreServer, *, guarded: bool = True, count: int = 2, **more: Any
) -> AsyncIterator[list[Replica]]:
    made = [Replica(server.url, guarded=guarded, **more) for _ in range(count)]
    try:
        yield [await each.up() for each in made]
    finally:
        for each in made:
            await each.down()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[StoreServer]:
    async with store_server(tmp_path) as found:
        yield found


async def test_what_one_publishes_another_finds_deepest_first(server: StoreServer) -> None:
    async with replicas(server) as (a, b):
        a.keep(ASK, request="short")
        a.keep(ASK, REPLY, NEXT, request="long", deadline=time.monotonic() + 50)
        await a.settled()
        found = await b.find(ASK, REPLY, NEXT, REPLY, MORE)
        assert found is not None
        assert found.handle.request_id == "long"
        assert found.published
        assert 40 < found.deadline - time.monotonic() <= 50
        shallow = await b.find(ASK, REPLY, MORE)
        assert shallow is not None, "an edited history is found by what it shares"
        assert await b.find(MORE) is None
        assert await b.find(ASK, REPLY, NEXT, tenant=b"another") is None
        assert b.shared.counters.lookups == {"hit": 2, "miss": 2}


async def test_a_borrowed_hold_is_released_only_after_it_was_given_back(server: StoreServer) -> None:
    async with replicas(server) as (a, b):
        entry = a.keep(ASK)
        await a.settled()
        found = await b.find(ASK, REPLY, NEXT)
        assert found is not None
        a.release(entry)
        await a.settled()
        a.shared.beat()
        await a.settled()
        assert a.freed == []
        assert await b.find(ASK, REPLY, NEXT) is None, "nobody finds what is being withdrawn"
        b.shared.give_back(found, replaced=False)
        await b.settled()
        await until(lambda: a.freed == [entry])


async def test_a_borrowed_hold_is_kept_until_the_deadline_that_its_reader_was_told(server: StoreServer) -> None:
    async with replicas(server, pull_seconds=0.01) as (a, b):
        entry = a.keep(ASK)
        await a.settled()
        assert await b.find(ASK, REPLY, NEXT) is not None
        begun = int((await server.say("TIME"))[0])

        def over() -> bool:
            """Tell whether more time than any pull's has passed, by the store's own clock."""
            return int(asyncio.run(server.say("TIME"))[0]) >= begun + 2

        await until(over)
        a.release(entry)
        await a.settled()
        a.shared.beat()
        await a.settled()
        assert a.freed == []


async def test_a_replaced_hold_is_released_by_its_owner_when_the_reader_says_so(server: StoreServer) -> None:
    async with replicas(server) as (a, b):
        entry = a.keep(ASK)
        await a.settled()
        found = await b.find(ASK, REPLY, NEXT)
        assert found is not None
        b.shared.give_back(found, replaced=True)
        await until(lambda: entry.retired)
        assert a.ledger.due_releases() == [entry]


async def test_two_routers_race_for_a_stock_handle_and_one_gets_it(server: StoreServer) -> None:
    async with replicas(server, guarded=False, count=3) as (a, b, c):
        for number in range(30):
            message = {"role": "user", "content": f"conversation {number}"}
            entry = a.keep(message)
            await a.settled()
            a.ledger.take(entry, Fate.USED)
            finds = [b.find(message), c.find(message)]
            claims = [a.claim(entry)] if number % 2 else []
            assert sum(bool(each) for each in await asyncio.gather(*claims, *finds)) == 1


async def test_foreign_and_corrupt_values_are_misses(server: StoreServer) -> None:
    async with replicas(server) as (a, b):
        entry = a.keep(ASK)
        await a.settled()
        (key,) = await server.say("KEYS", "*:e:*")
        record = await server.say("HGET", key, "r")
        for wrong in (b"", b"text", record[:-1], record[:20] + b"x" + record[21:], b"dxl0" + record[4:]):
            await server.say("HSET", key, "r", wrong)
            assert await b.find(ASK, REPLY, NEXT) is None
        await server.say("HSET", key, "r", record)
        assert await b.find(ASK, REPLY, NEXT) is not None
        index = b"{duplex:t}:m:" + TENANT + entry.marks[-1]
        assert await server.say("DEL", index) == 1
        await server.say("RPUSH", index, "not a string")
        assert await b.find(ASK, REPLY, NEXT) is None
        assert b.shared.link.up


async def test_a_record_of_an_earlier_boot_is_not_found(server: StoreServer) -> None:
    async with replicas(server) as (a, b):
        a.keep(ASK, boot="first")
        await a.settled()
        a.keep(MORE, boot="second")
        await a.settled()
        assert await b.find(ASK, REPLY, NEXT) is None
        assert await b.find(MORE, REPLY, NEXT) is not None


async def test_a_router_that_leaves_is_inherited_at_once(server: StoreServer) -> None:
    async with replicas(server) as (a, b):
        entry = a.keep(ASK, tokens=77)
        await a.settled()
        await until(lambda: b.shared.routers == 2)
        await a.shared.leave()
        await a.down()
        await until(lambda: len(b.ledger) == 1)
        (adopted,) = b.ledger
        assert adopted.handle.request_id == entry.handle.request_id
        assert b.ledger.tokens == 77
        assert b.ledger.match(chat(ASK, REPLY, NEXT), TENANT, anyone).entry is adopted
        await until(lambda: b.shared.routers == 1, seconds=20)


async def test_a_dead_router_is_inherited_only_after_its_pulls_must_be_over(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duplex_router.store.shared.FENCE_SECONDS", 1.5)
    async with replicas(server, pull_seconds=1.0) as (a, b):
        a.keep(ASK)
        await a.settled()
        died = time.monotonic()
        await a.down()
        await until(lambda: len(b.ledger) == 1)
        assert time.monotonic() - died > 2.0, "its fence and its longest pull have passed"


async def test_a_frozen_store_costs_one_timeout_each_for_two_and_then_nothing(server: StoreServer) -> None:
    async with replicas(server, count=1, seconds=0.02) as (a,):
        server.signal(signal.SIGSTOP)
        for _ in range(5):
            assert await a.find(ASK) is None
        assert a.shared.counters.lookups == {"late": 2, "closed": 3}
        server.signal(signal.SIGCONT)
        await until(lambda: a.shared.link.prompt)


async def test_a_handle_taken_by_a_late_reply_is_kept(server: StoreServer) -> None:
    async with replicas(server, guarded=False) as (a, b):
        a.keep(ASK)
        await a.settled()
        b.shared.link.settings = StoreSettings(url=server.url, prefix="t", seconds=0.02)
        server.signal(signal.SIGSTOP)
        assert await b.find(ASK, REPLY, NEXT) is None
        server.signal(signal.SIGCONT)
        await until(lambda: len(b.ledger) == 1)


async def test_after_a_restart_of_the_store_what_routers_hold_is_there_again(server: StoreServer) -> None:
    async with replicas(server) as (a, b):
        entry = a.keep(ASK)
        await a.settled()
        server.kill()
        await until(lambda: not a.shared.link.up and not b.shared.link.up)
        assert await b.find(ASK) is None
        server.start()
        await server.ready()
        await until(lambda: a.shared.link.up and b.shared.link.up)
        await a.settled()
        found = await b.find(ASK, REPLY, NEXT)
        assert found is not None
        b.shared.give_back(found, replaced=False)
        await b.settled()
        a.release(entry)
        await a.settled()
        assert a.freed == [], "the new server may not know of a pull that the old one knew of"


async def test_a_router_long_without_the_store_does_not_rely_on_what_it_published(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duplex_router.store.shared.FENCE_SECONDS", 1.0)
    async with replicas(server, count=1) as (a,):
        published = a.keep(ASK)
        await a.settled()
        server.kill()
        await until(lambda: time.monotonic() > a.ledger.shared_until)
        assert a.ledger.match(chat(ASK), TENANT, anyone).entry is None
        assert not a.ledger.start_pull(published)
        await until(lambda: len(a.ledger) == 0)
        private = a.keep(MORE)
        assert a.ledger.match(chat(MORE), TENANT, anyone).entry is private
        assert a.ledger.start_pull(private)


async def test_no_server_at_all_is_a_miss_at_once() -> None:
    a = Replica(f"redis://127.0.0.1:{free_port()}", guarded=True)
    asked: list[object] = []
    a.shared.link.ask((b"PING",), asked.append)
    await asyncio.sleep(0)
    assert asked == [Nothing.CLOSED]
    assert await a.find(ASK) is None
    await a.down()


async def test_tls_is_used_and_the_certificate_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca", "store-ca")
    pair = authority.server("store", "store", ["127.0.0.1"])
    port = free_port()
    files = ["--tls-cert-file", str(pair.certificate), "--tls-key-file", str(pair.key)]
    files += ["--tls-ca-cert-file", str(authority.certificate), "--tls-auth-clients", "no"]
    async with store_server(tmp_path, "--tls-port", str(port), *files):
        a = Replica(f"rediss://127.0.0.1:{port}", guarded=True)
        await until(lambda: "certificate" in a.shared.link.why_down)
        a.shared.link.settings = StoreSettings(
            url=f"rediss://127.0.0.1:{port}", ca_file=authority.certificate, prefix="t"
        )
        await until(lambda: a.shared.link.up)
        await a.down()


async def test_a_password_is_used_and_a_changed_one_taken_up(tmp_path: Path) -> None:
    async with store_server(tmp_path, "--requirepass", "s3cret") as server:
        file = tmp_path / "url"
        file.write_text(f"redis://127.0.0.1:{server.port}\n")
        a = Replica("", guarded=True)
        a.shared.link.settings = StoreSettings(url_file=file, prefix="t")
        await until(lambda: "Authentication" in a.shared.link.why_down or "NOAUTH" in a.shared.link.why_down)
        file.write_text(f"redis://:s3cret@127.0.0.1:{server.port}\n")
        await until(lambda: a.shared.link.up)
        await a.down()
