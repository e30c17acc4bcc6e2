"""Holds in real block counts: read many times, renewed, released, lapsed; TTL and threshold that act at once."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from duplex_connector.contract import ConnectorKind, Duplex, Metric, Params, Role
from duplex_connector.proof import Reason

from .checks import ANSWER, GUARDED, PROMPT, STOCK, connector, is_alive, over, pulled
from .conftest import Manager
from .report import Report
from .turns import COMPLETIONS as _COMPLETIONS
from .turns import NoAnswerError, Turns, blocks_used, eventually, request, samples
from .variants import Variant

_HELD: Final = PROMPT + ANSWER - 1


def _blocks(turns: Turns, tokens: int) -> int:
    return -(-tokens // turns.engines.facts.block_size)


def _used(turns: Turns, expected: int, seconds: float = 10.0) -> int:
    return int(eventually(lambda: blocks_used(turns.engines.decode), expected, seconds=seconds))


@over(STOCK, GUARDED)
def test_a_hold_pins_its_blocks_and_a_pull_frees_them(turns: Turns, variant: Variant, report: Report) -> None:
    before = blocks_used(turns.engines.decode)
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    held = before + _blocks(turns, _HELD)
    assert _used(turns, held) == held
    assert blocks_used(turns.engines.prefill) == 0
    turns.drop(turns.prefill(turn.history + turns.words(90), turn.handle))
    assert _used(turns, before) == before
    report.add("blocks held, then freed by a pull", connector(variant), f"{held - before}, 0")


@over(GUARDED)
def test_one_hold_is_pulled_five_times(turns: Turns, variant: Variant, report: Report) -> None:
    before = blocks_used(turns.engines.decode)
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    held = before + _blocks(turns, _HELD)
    late = samples(turns.engines.decode).get("vllm:nixl_num_notifications_after_expiry_total", 0.0)
    prompts = [turn.history + turns.words(50) for _ in range(3)]
    prompts += [turn.prompt + turns.words(50), turn.history + turns.words(120)]
    for prompt in prompts:
        following = turns.turn(prompt, turn.handle, most=ANSWER, keep=True, ttl=0)
        assert following.prefill.duplex[Duplex.PULLED] > PROMPT - 64
        assert following.tokens == turns.plain(prompt, ANSWER)
        assert _used(turns, held) == held
    turns.release(turn.handle)
    assert _used(turns, before) == before
    assert samples(turns.engines.decode).get("vllm:nixl_num_notifications_after_expiry_total", 0.0) == late
    report.add("one hold pulled five times", connector(variant), "right 5/5, blocks constant, then freed")


@over(STOCK)
def test_a_second_pull_on_a_stock_pair_reads_what_is_freed(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(90)
    turns.drop(turns.prefill(prompt, turn.handle))
    name = "vllm:nixl_num_notifications_after_expiry_total"
    before = samples(turns.engines.decode).get(name, 0.0)
    turns.drop(turns.prefill(turn.history + turns.words(90), turn.handle))
    late = eventually(lambda: samples(turns.engines.decode).get(name, 0.0), before + 1)
    assert late == before + 1
    report.add("second pull of one handle", connector(variant), "200, decode counts a late notification")


@over(GUARDED)
def test_ttl_acts_per_request(turns: Turns, variant: Variant, report: Report) -> None:
    before = blocks_used(turns.engines.decode)
    none = turns.turn(turns.words(PROMPT), most=ANSWER, ttl=0)
    assert none.handle == {}
    assert _used(turns, before) == before
    started = time.monotonic()
    short = turns.turn(turns.words(PROMPT), most=ANSWER, ttl=3)
    held = before + _blocks(turns, _HELD)
    assert short.handle
    assert _used(turns, held, 2) == held
    assert _used(turns, before) == before
    lasted = time.monotonic() - started
    assert lasted > 2.5
    report.add("ttl 0, ttl 3", connector(variant), "none held, lapsed after 3 s")


@over(GUARDED)
def test_renewals_outlast_the_ttl_and_the_pull_is_right(turns: Turns, variant: Variant, report: Report) -> None:
    before = blocks_used(turns.engines.decode)
    turn = turns.turn(turns.words(PROMPT), most=ANSWER, ttl=4)
    request_id = turn.handle[Params.REQUEST_ID]
    started = time.monotonic()
    for _ in range(3):
        time.sleep(2)
        assert turns.lease({request_id: 4}).status == 404
    held = before + _blocks(turns, _HELD)
    assert _used(turns, held, 1) == held
    turns.lease({request_id: 30})
    gained = time.monotonic() - started + 30 - 4
    handle = {**turn.handle, Params.EXPIRY_TIME: turn.handle[Params.EXPIRY_TIME] + gained}
    prompt = turn.history + turns.words(90)
    following = turns.turn(prompt, handle, most=ANSWER, ttl=0)
    assert following.prefill.duplex[Duplex.PULLED] == _HELD
    assert following.tokens == turns.plain(prompt, ANSWER)
    assert _used(turns, before) == before
    report.add("ttl 4, renewed for 6 s, then pulled", connector(variant), "right", pulled=_HELD)


@over(GUARDED)
def test_release_is_at_once_and_counted_apart(turns: Turns, variant: Variant, report: Report) -> None:
    before = blocks_used(turns.engines.decode)
    first, second = (turns.turn(turns.words(PROMPT), most=ANSWER, ttl=300) for _ in range(2))
    counted = samples(turns.engines.decode)
    turns.lease({first.handle[Params.REQUEST_ID]: 0, second.handle[Params.REQUEST_ID]: 0, "of-nobody": 0})
    assert _used(turns, before, 3) == before

    def grown(name: str) -> float:
        return samples(turns.engines.decode).get(f"{name}_total", 0.0) - counted.get(f"{name}_total", 0.0)

    assert eventually(lambda: grown(Metric.DUPLEX_RELEASES), 2.0) == 2.0
    assert grown(Metric.NIXL_EXPIRED) == 0
    report.add("two holds released in one message", connector(variant), "free at once, counted as releases")


@over(STOCK, GUARDED)
def test_a_lease_message_to_decode(turns: Turns, variant: Variant, report: Report) -> None:
    """It ends a stock engine, which looks for keys that the message lacks: so stock pairs must never get one."""
    stock = variant.connector is ConnectorKind.STOCK
    # A stock engine may end before it has answered.
    with suppress(NoAnswerError):
        turns.lease({"of-nobody": 0})
    alive = eventually(lambda: is_alive(turns.engines.decode), expected=not stock, seconds=60)
    report.add("a lease message to decode", connector(variant), "nothing happens" if alive else "engine dead")
    assert alive is not stock
    if not stock:
        prompt = turns.words(PROMPT)
        assert turns.turn(prompt, most=ANSWER).tokens == turns.plain(prompt, ANSWER)


@over(STOCK, GUARDED)
def test_a_rejected_request_at_prefill_frees_decodes_hold(turns: Turns, variant: Variant, report: Report) -> None:
    """The release that a stock pair understands, once prefill has met decode: see the next check."""
    before = blocks_used(turns.engines.decode)
    met = turns.turn(turns.words(PROMPT), most=ANSWER)
    turns.drop(turns.prefill(met.history + turns.words(90), met.handle))
    assert _used(turns, before) == before
    _reject(turns, turns.turn(turns.words(PROMPT), most=ANSWER).handle)
    assert _used(turns, before) == before
    report.add("release by a rejected request at prefill", connector(variant), "freed")


def _reject(turns: Turns, handle: dict[str, Any]) -> None:
    params = {**handle, Params.DO_REMOTE_PREFILL: True, Params.DO_REMOTE_DECODE: False}
    body = turns.body(turns.words(5), 1, params, model="no-such-model")
    assert request(turns.engines.prefill, _COMPLETIONS, body).status == 404


@over(replace(STOCK, role_is_both=False))
def test_a_rejected_request_at_a_prefill_that_never_met_decode(
    turns: Turns, variant: Variant, report: Report, manager: Manager
) -> None:
    """A real one that is idle shakes hands, and then makes no step that would send the notice: that comes later."""
    turns.kill(Role.DECODE)
    with Turns(manager.get(variant)) as fresh:
        before = blocks_used(fresh.engines.decode)
        turn = fresh.turn(fresh.words(PROMPT), most=ANSWER)
        assert _used(fresh, before + _blocks(fresh, _HELD)) == before + _blocks(fresh, _HELD)
        _reject(fresh, turn.handle)
        at_once = _used(fresh, before) == before
        request(fresh.engines.prefill, _COMPLETIONS, fresh.body(fresh.words(5), 1, None))
        assert _used(fresh, before) == before
    seen = "freed" if at_once else "freed by prefill's next step"
    report.add("release by a rejected request, never met", connector(variant), seen)


@over(GUARDED)
def test_threshold_acts_per_request(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(90)
    high = turns.prefill(prompt, turn.handle, wishes={Duplex.THRESHOLD: _HELD + 1, Duplex.KEEP: True})
    assert (high.duplex[Duplex.PULLED], high.duplex[Duplex.REASON]) == (0, Reason.BELOW_THRESHOLD)
    assert high.duplex[Duplex.PROVED] == _HELD
    exact = turns.prefill(prompt, turn.handle, wishes={Duplex.THRESHOLD: _HELD, Duplex.KEEP: True})
    assert exact.duplex[Duplex.PULLED] == _HELD
    turns.release(turn.handle)
    turns.drop(high)
    turns.drop(exact)
    report.add("threshold above and at the missing tokens", connector(variant), f"0, {_HELD} pulled")


@over(STOCK)
def test_the_threshold_flag_of_stock_engines(turns: Turns, variant: Variant, report: Report) -> None:
    short = turns.turn(turns.words(32), most=20)
    computed = turns.prefill(short.history + turns.words(90), short.handle)
    enough = turns.turn(turns.words(45), most=20)
    fetched = turns.prefill(enough.history + turns.words(90), enough.handle)
    turns.drop(computed)
    turns.drop(fetched)
    assert (pulled(computed, variant), pulled(fetched, variant)) == (0, 64)
    report.add("threshold flag 64: 51 and 64 missing", connector(variant), "0, 64 pulled")
