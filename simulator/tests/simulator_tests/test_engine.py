"""A running pair of engines in one process: what is pulled, held, refused, hung on and marked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duplex_connector.contract import ConnectorKind, Duplex, Params
from duplex_connector.proof import Reason
from duplex_simulator.engine import EngineDeadError, LoadFailedError
from duplex_simulator.request import Status
from duplex_simulator.tokenizer import CORRUPT

from .clocks import VirtualClock
from .nodes import COLD, Leg, Node, node

STOCK, GUARDED = ConnectorKind.STOCK, ConnectorKind.GUARDED
BARE = "--no-enable-prefix-caching"


def words(count: int, first: int = 300) -> list[int]:
    return [first + index * 7 % 3000 for index in range(count)]


async def _turn(
    prefill: Node, decode: Node, prompt: list[int], handle: dict[str, Any] | None = None
) -> tuple[Leg, Leg]:
    one = await prefill.leg(prompt, 1, handle or COLD)
    return one, await decode.leg(prompt, 20, one.params)


async def test_a_pair_answers_as_a_plain_engine_and_only_new_tokens_are_computed() -> None:
    clock = VirtualClock()
    async with node(clock, BARE, kind=GUARDED) as p, node(clock, kind=GUARDED) as d, node(clock) as plain:
        first, answered = await _turn(p, d, words(200))
        assert first.params[Params.NUM_TOKENS] == 200
        assert answered.params[Params.NUM_TOKENS] == 219
        prompt = words(200) + answered.tokens + words(50, 900)
        second, final = await _turn(p, d, prompt, answered.params)
        assert second.params[Params.DUPLEX][Duplex.PULLED] == 219
        assert final.tokens == (await plain.leg(prompt, 20)).tokens
        assert p.used == 0
        assert d.used == -(-(270 + 19) // 16)


async def test_corruption_is_marked_counted_and_handed_on() -> None:
    clock = VirtualClock()
    async with node(clock, BARE, kind=STOCK) as p, node(clock, kind=STOCK) as d:
        _, answered = await _turn(p, d, words(200))
        first, final = await _turn(p, d, words(240, 1200), answered.params)
        assert first.tokens == [CORRUPT]
        assert final.tokens[0] == CORRUPT
        assert final.tokens.count(CORRUPT) == 1
        assert (p.process.engine.corrupt_answers, d.process.engine.corrupt_answers) == (1, 1)


async def test_a_read_of_a_freed_hold_is_never_lucky() -> None:
    clock = VirtualClock()
    async with node(clock, BARE, kind=STOCK) as p, node(clock, kind=STOCK) as d:
        _, answered = await _turn(p, d, words(200))
        prompt = words(200) + answered.tokens + words(50, 900)
        assert CORRUPT not in (await p.leg(prompt, 1, answered.params)).tokens
        await _settled(d, 0)
        assert (await p.leg(prompt, 1, answered.params)).tokens == [CORRUPT]
        assert d.process.engine.freed_reads > 0


async def _settled(side: Node, used: int) -> None:
    for _ in range(2000):
        if side.used == used:
            return
        await asyncio.sleep(0.001)
    assert side.used == used


@pytest.mark.parametrize(("kind", "left"), [(STOCK, 3), (GUARDED, 0)])
async def test_decode_alone_holds_only_what_was_asked_for(kind: ConnectorKind, left: int) -> None:
    clock = VirtualClock()
    alone = {Params.DO_REMOTE_PREFILL: False, Params.DO_REMOTE_DECODE: False}
    async with node(clock, kind=kind) as d:
        assert (await d.leg(words(40), 8)).params == {}
        assert d.used == 0
        assert (await d.leg(words(40), 8, alone)).params[Params.NUM_TOKENS] == 47
        assert d.used == 3
        # A stock worker was never told of the request: its blocks stay pinned for good.
        clock.move(500)
        await asyncio.sleep(0.15)
        assert d.used == left


async def test_without_the_flag_a_finished_turn_is_not_held() -> None:
    clock = VirtualClock()
    async with node(clock, kind=STOCK) as p, node(clock, kind=STOCK, bidirectional_kv_xfer=False) as d:
        _, answered = await _turn(p, d, words(200))
        assert (answered.params, d.used) == ({}, 0)


async def test_a_guarded_hold_lasts_as_its_request_says_and_is_read_more_than_once() -> None:
    clock = VirtualClock()
    async with node(clock, BARE, kind=GUARDED) as p, node(clock, kind=GUARDED) as d, node(clock) as plain:
        first = await p.leg(words(200), 1, COLD)
        none = await d.leg(words(200), 20, _wishing(first.params, **{Duplex.TTL: 0}))
        assert (none.params, d.used) == ({}, 0)
        first = await p.leg(words(200), 1, COLD)
        answered = await d.leg(words(200), 20, _wishing(first.params, **{Duplex.TTL: 40}))
        assert answered.params[Params.EXPIRY_TIME] == clock.now() + 40
        prompt = words(200) + answered.tokens + words(50, 900)
        for _ in range(2):
            again = await p.leg(prompt, 1, _wishing(answered.params, **{Duplex.KEEP: True}))
            assert again.params[Params.DUPLEX][Duplex.PULLED] == 219
            assert again.tokens == (await plain.leg(prompt, 1)).tokens
        skipped = await p.leg(prompt, 1, _wishing(answered.params, **{Duplex.KEEP: True, Duplex.THRESHOLD: 220}))
        assert skipped.params[Params.DUPLEX][Duplex.REASON] == Reason.BELOW_THRESHOLD
        assert d.used == 14
        request_id = answered.params[Params.REQUEST_ID]
        _lease(d, request_id, 100)
        clock.move(60)
        await asyncio.sleep(0.15)
        assert d.used == 14
        _lease(d, request_id, 0)
        assert d.used == 0


def _wishing(params: dict[str, Any], **wishes: Any) -> dict[str, Any]:
    return {**params, Params.DUPLEX: {**params[Params.DUPLEX], **wishes}}


def _lease(side: Node, request_id: str, seconds: float) -> None:
    side.process.engine.reject({Params.DO_REMOTE_PREFILL: True, Params.DUPLEX: {Duplex.RENEW: {request_id: seconds}}})


async def test_a_hand_off_lapses_with_its_lease() -> None:
    clock = VirtualClock()
    async with node(clock, BARE, kind=STOCK) as p:
        await p.leg(words(40), 1, COLD)
        assert p.used == 3
        clock.move(29)
        await asyncio.sleep(0.15)
        assert p.used == 3
        clock.move(2)
        await _settled(p, 0)
        assert p.process.engine.connector is not None
        assert p.process.engine.connector.holds.counts.expired == 1


@pytest.mark.parametrize(("kind", "fate"), [(STOCK, "fails"), (GUARDED, "computes")])
async def test_a_handle_near_its_deadline_is_declined(kind: ConnectorKind, fate: str) -> None:
    clock = VirtualClock()
    async with node(clock, BARE, kind=kind) as p, node(clock, kind=kind) as d, node(clock) as plain:
        _, answered = await _turn(p, d, words(200))
        prompt = words(200) + answered.tokens + words(50, 900)
        clock.move(answered.params[Params.EXPIRY_TIME] - clock.now() - 4.9)
        if fate == "fails":
            with pytest.raises(LoadFailedError):
                await p.leg(prompt, 1, answered.params)
        else:
            leg = await p.leg(prompt, 1, answered.params)
            assert leg.params[Params.DUPLEX][Duplex.REASON] == Reason.PULL_FAILED
            assert leg.tokens == (await plain.leg(prompt, 1)).tokens


def _stands_still(clock: VirtualClock, holder: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the holder read its blocks for a peer only after it has freed them: it stood still meanwhile."""
    engine = holder.process.engine
    read = engine.read_blocks

    def late(request_id: str, block_ids: list[list[int]]) -> list[list[bytes]]:
        clock.move(500)
        assert engine.connector is not None
        engine.connector.holds.reap(clock.now())
        return read(request_id, block_ids)

    monkeypatch.setattr(engine, "read_blocks", late)


@pytest.mark.parametrize("direction", ["decode to prefill", "prefill to decode"])
async def test_what_was_read_after_the_lease_is_not_used(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    async with node(clock, BARE, kind=GUARDED) as p, node(clock, kind=GUARDED) as d, node(clock) as plain:
        _, answered = await _turn(p, d, words(200))
        prompt = words(200) + answered.tokens + words(50, 900)
        _stands_still(clock, d if direction == "decode to prefill" else p, monkeypatch)
        first, final = await _turn(p, d, prompt, answered.params)
        failed = first if direction == "decode to prefill" else final
        assert failed.params[Params.DUPLEX][Duplex.REASON] == Reason.PULL_FAILED
        assert final.tokens == (await plain.leg(prompt, 20)).tokens
        assert (p.process.engine.corrupt_answers, d.process.engine.corrupt_answers) == (0, 0)


async def test_a_stock_engine_uses_what_came_late(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    async with node(clock, BARE, kind=STOCK) as p, node(clock, kind=STOCK) as d:
        _, answered = await _turn(p, d, words(200))
        _stands_still(clock, d, monkeypatch)
        first = await p.leg(words(200) + answered.tokens + words(50, 900), 1, answered.params)
        assert first.tokens == [CORRUPT]


async def test_a_stock_prefill_without_the_flag_hangs_and_leaks_its_blocks() -> None:
    clock = VirtualClock()
    async with (
        node(clock, BARE, kind=STOCK, bidirectional_kv_xfer=False) as p,
        node(clock, kind=STOCK) as d,
    ):
        _, answered = await _turn(p, d, words(200))
        await _settled(p, 0)
        hanging = asyncio.create_task(p.leg(words(300), 1, answered.params))
        done, _ = await asyncio.wait({hanging}, timeout=0.3)
        assert not done
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        assert p.used == 14


async def test_an_aborted_request_gives_its_blocks_back() -> None:
    clock = VirtualClock()
    async with node(clock, kind=STOCK) as d:
        request = d.request(words(40), 50, {Params.DO_REMOTE_PREFILL: False, Params.DO_REMOTE_DECODE: False})
        stream = d.process.engine.generate(request)
        await anext(stream)
        assert d.used == 3
        await stream.aclose()
        assert (d.used, request.status) == (0, Status.ABORTED)


async def test_a_dead_engine_fails_every_request() -> None:
    clock = VirtualClock()
    async with node(clock, BARE, kind=STOCK) as p, node(clock, kind=STOCK) as d:
        _, answered = await _turn(p, d, words(200))
        flat = {**answered.params, Params.BLOCK_IDS: answered.params[Params.BLOCK_IDS][0]}
        with pytest.raises(EngineDeadError):
            await p.leg(words(300), 1, flat)
        with pytest.raises(EngineDeadError):
            await p.leg(words(40), 1, COLD)


async def test_a_full_pool_makes_requests_wait_their_turn() -> None:
    clock = VirtualClock()
    async with node(clock, BARE, "--sim-blocks", "9", "--max-model-len", "128") as plain:
        prompts = [words(100, first) for first in (300, 400, 500)]
        legs = await clock.run(_all(plain, prompts))
        assert [leg.tokens for leg in legs] == [(await plain.leg(prompt, 8)).tokens for prompt in prompts]
        assert plain.used == 0


async def _all(side: Node, prompts: list[list[int]]) -> list[Leg]:
    return list(await asyncio.gather(*(side.leg(prompt, 8) for prompt in prompts)))


async def test_preempted_requests_finish_with_the_same_answer() -> None:
    clock = VirtualClock()
    flags = (BARE, "--sim-blocks", "13", "--max-model-len", "180", "--sim-profile", "qwen3-32b-p5en")
    async with node(clock, *flags) as plain, node(clock) as roomy:
        prompts = [words(60, first) for first in (300, 400, 500)]
        legs = await clock.run(_long(plain, prompts))
        assert plain.process.engine.scheduler.preemptions > 0
        for prompt, leg in zip(prompts, legs, strict=True):
            assert leg.tokens == (await roomy.leg(prompt, 60)).tokens
        assert plain.used == 0


async def _long(side: Node, prompts: list[list[int]]) -> list[Leg]:
    return list(await asyncio.gather(*(side.leg(prompt, 60) for prompt in prompts)))


async def test_block_sizes_that_differ_are_silently_wrong_one_way_and_fail_the_other() -> None:
    """P 32 / D 64 passes the handshake and answers wrongly; P 64 / D 32 fails."""
    clock = VirtualClock()
    small, large = ("--block-size", "32"), ("--block-size", "64")
    async with node(clock, *small, kind=STOCK) as p, node(clock, *large, kind=STOCK) as d:
        _, answered = await _turn(p, d, words(200))
        assert answered.tokens[0] == CORRUPT
    async with node(clock, *large, kind=STOCK) as p, node(clock, *small, kind=STOCK) as d:
        first = await p.leg(words(200), 1, COLD)
        with pytest.raises(LoadFailedError):
            await d.leg(words(200), 8, first.params)


async def test_a_state_space_model_hands_off_and_reuses_but_not_exactly_what_is_held() -> None:
    clock = VirtualClock()
    groups = ("--sim-groups", "full,state")
    async with (
        node(clock, *groups, kind=STOCK) as p,
        node(clock, *groups, kind=STOCK) as d,
        node(clock, *groups) as plain,
    ):
        _, answered = await _turn(p, d, words(200))
        prompt = words(200) + answered.tokens + words(50, 900)
        _, final = await _turn(p, d, prompt, answered.params)
        assert final.tokens == (await plain.leg(prompt, 20)).tokens
        held = (prompt + final.tokens)[: final.params[Params.NUM_TOKENS]]
        assert CORRUPT not in (await p.leg([*held, 301, 302], 1, final.params)).tokens
    # vLLM drops the last prompt token of such a hand-off, so one token more than is held is a full hit: the state
    # that already has the token is advanced by it again.
    async with node(clock, *groups, kind=STOCK) as p, node(clock, *groups, kind=STOCK) as d:
        _, answered = await _turn(p, d, words(200))
        exact = (words(200) + answered.tokens)[: answered.params[Params.NUM_TOKENS] + 1]
        assert (await p.leg(exact, 1, answered.params)).tokens == [CORRUPT]
    async with node(clock, *groups, kind=GUARDED) as p, node(clock, *groups, kind=GUARDED) as d:
        _, answered = await _turn(p, d, words(200))
        exact = (words(200) + answered.tokens)[: answered.params[Params.NUM_TOKENS] + 1]
        refused = await p.leg(exact, 1, answered.params)
        assert refused.params[Params.DUPLEX][Duplex.REASON] == Reason.STATE_FULL_HIT
        assert CORRUPT not in refused.tokens
