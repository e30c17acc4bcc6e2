"""The side channel: who is who, what is moved, and how a peer that is gone shows."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
import uvloop

from duplex_simulator import sidechannel
from duplex_simulator.clock import SystemClock
from duplex_simulator.sidechannel import Identity, SideChannelClient, SideChannelServer, TransferError

from .clocks import VirtualClock

HOST = "127.0.0.1"
HERE = Identity("here", "same", (16,))
THERE = Identity("there", "same", (16,))


class _Memory:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def read_blocks(self, request_id: str, block_ids: list[list[int]]) -> list[list[bytes]]:
        if any(block > 9 for ids in block_ids for block in ids):
            raise IndexError("block 10 is beyond the pool")
        return [[f"{request_id}/{block}".encode() for block in ids] for ids in block_ids]

    def notified(self, text: str) -> None:
        self.heard.append(text)


async def test_blocks_and_notifications_cross() -> None:
    memory, clock, away = _Memory(), VirtualClock(100), VirtualClock(5000)
    server, client = SideChannelServer(THERE, memory, away), SideChannelClient(HERE, clock)
    port = await server.start(HOST, 0)
    try:
        read = await client.read("there", HOST, port, "r1", [[1, 2], [3]])
        await client.notify("there", HOST, port, "r1:1")
        assert read == [[b"r1/1", b"r1/2"], [b"r1/3"]]
        assert memory.heard == ["r1:1"]
        assert await client.offset("there", HOST, port) == 4900
        with pytest.raises(TransferError, match="beyond the pool"):
            await client.read("there", HOST, port, "r1", [[10]])
    finally:
        client.close()
        await server.close()


@pytest.mark.parametrize(
    ("own", "expected", "says"),
    [
        (HERE, "an earlier boot", "engine ID mismatch"),
        (Identity("here", "other", (16,)), "there", "compatibility hash"),
        (Identity("here", "same", (8,)), "there", "not a multiple"),
    ],
)
async def test_the_reader_checks_whom_it_met(own: Identity, expected: str, says: str) -> None:
    server, client = SideChannelServer(THERE, _Memory(), SystemClock()), SideChannelClient(own, SystemClock())
    port = await server.start(HOST, 0)
    try:
        with pytest.raises(TransferError, match=says):
            await client.offset(expected, HOST, port)
    finally:
        client.close()
        await server.close()


async def test_the_holder_checks_for_whom_it_is_taken() -> None:
    server = SideChannelServer(THERE, _Memory(), SystemClock())
    port = await server.start(HOST, 0)
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        read = {"kind": "read", "expects": "an earlier boot", "request": "r", "blocks": [[1]], "payload": 0}
        head = json.dumps(read).encode()
        writer.write(len(head).to_bytes(4, "big") + head)
        answer = json.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
        assert answer["error"] == "engine ID mismatch"
    finally:
        writer.close()
        await server.close()


async def test_larger_blocks_read_from_smaller_ones_pass_the_handshake_as_in_vllm() -> None:
    server = SideChannelServer(THERE, _Memory(), SystemClock())
    client = SideChannelClient(Identity("here", "same", (32,)), SystemClock())
    port = await server.start(HOST, 0)
    try:
        assert await client.read("there", HOST, port, "r", [[1]]) == [[b"r/1"]]
    finally:
        client.close()
        await server.close()


async def test_a_met_peer_that_is_gone_fails_at_once_and_one_never_met_after_the_handshakes_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sidechannel, "HANDSHAKE_SECONDS", 1.0)
    server, client = SideChannelServer(THERE, _Memory(), SystemClock()), SideChannelClient(HERE, SystemClock())
    port = await server.start(HOST, 0)
    await client.notify("there", HOST, port, "x:1")
    await server.close()
    started = time.monotonic()
    with pytest.raises(TransferError, match="is gone"):
        await client.notify("there", HOST, port, "x:1")
    assert time.monotonic() - started < 0.8
    started = time.monotonic()
    with pytest.raises(TransferError, match="no handshake"):
        await client.notify("there", HOST, port, "x:1")
    assert time.monotonic() - started >= 0.9
    client.close()


async def test_a_peer_that_comes_up_within_the_handshakes_time_is_met() -> None:
    server, client = SideChannelServer(THERE, _Memory(), SystemClock()), SideChannelClient(HERE, SystemClock())
    port = await server.start(HOST, 0)
    await server.close()
    reading = asyncio.create_task(client.read("there", HOST, port, "r", [[1]]))
    await asyncio.sleep(0.3)
    late = SideChannelServer(THERE, _Memory(), SystemClock())
    await late.start(HOST, port)
    assert await reading == [[b"r/1"]]
    client.close()
    await late.close()


def test_whoever_waits_to_ask_a_peer_that_goes_is_told_so_on_the_loop_that_engines_run_on() -> None:
    """The second of two asks finds the connection closed by the first, which uvloop tells by a RuntimeError."""

    async def ask_twice() -> list[object]:
        server, client = SideChannelServer(THERE, _Memory(), SystemClock()), SideChannelClient(HERE, SystemClock())
        port = await server.start(HOST, 0)
        await client.notify("there", HOST, port, "x:1")
        asks = [asyncio.ensure_future(client.notify("there", HOST, port, "x:1")) for _ in range(3)]
        await server.close()
        found = await asyncio.gather(*asks, return_exceptions=True)
        client.close()
        return [each for each in found if each is not None]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for _ in range(20):
            assert all(isinstance(each, TransferError) for each in runner.run(ask_twice()))
