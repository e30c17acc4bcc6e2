"""What fails and what hangs: traps 2 to 4 on stock engines, and that a guarded engine computes instead."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import replace
from typing import Any, Final

from duplex_connector.contract import ConnectorKind, Duplex, Params, Role
from duplex_connector.proof import Reason

from .checks import ANSWER, GUARDED, PROMPT, STOCK, connector, is_alive, judge, outcome, over, verdict
from .report import Report
from .turns import COMPLETIONS as _COMPLETIONS
from .turns import Reply, Turns, blocks_used, eventually, request, samples
from .variants import Variant

_STOCK_RECOMPUTES = replace(STOCK, recompute=True)


def _fate(
    turns: Turns, variant: Variant, report: Report, check: str, *, prompt: list[int], handle: dict[str, Any]
) -> str:
    """Return how a prefill leg ends; a guarded pair must then answer as the plain engine."""
    facts = turns.engines.facts
    stock = variant.connector is ConnectorKind.STOCK
    # A pull may fail only after a handshake's five seconds.
    fate, prefilled = outcome(turns, prompt, handle, seconds=facts.hang_seconds + 6 if stock else facts.answer_seconds)
    if stock:
        report.add(check, connector(variant), fate)
        return fate
    assert prefilled is not None, f"{check}: {fate}"
    assert prefilled.status == http.client.OK, prefilled.body
    answer, count = judge(report, turns, variant, check, prompt=prompt, prefilled=prefilled)
    assert count == 0
    return answer


@over(replace(STOCK, prefill_pulls=False), replace(GUARDED, prefill_pulls=False))
def test_trap_2_a_handle_for_a_prefill_without_the_flag(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(90)
    fate = _fate(turns, variant, report, "trap 2: flag off at prefill", prompt=prompt, handle=turn.handle)
    assert fate == ("hang" if variant.connector is ConnectorKind.STOCK else "right")


def _of_another_boot(handle: dict[str, Any]) -> dict[str, Any]:
    return {**handle, Params.ENGINE_ID: "00000000-0000-4000-8000-000000000000"}


@over(_STOCK_RECOMPUTES, GUARDED)
def test_trap_3_a_failed_pull_with_recompute(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(90)
    fate = _fate(
        turns,
        variant,
        report,
        "trap 3: pull fails, policy recompute",
        prompt=prompt,
        handle=_of_another_boot(turn.handle),
    )
    assert fate == ("hang" if variant.connector is ConnectorKind.STOCK else "right")


@over(STOCK, GUARDED)
def test_a_handle_of_another_boot(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(90)
    fate = _fate(
        turns, variant, report, "engine id of another boot", prompt=prompt, handle=_of_another_boot(turn.handle)
    )
    assert fate == ("500" if variant.connector is ConnectorKind.STOCK else "right")
    assert is_alive(turns.engines.prefill)


@over(STOCK, GUARDED)
def test_an_expired_handle(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(90)
    # Less than the five seconds of margin are left.
    late = {**turn.handle, Params.EXPIRY_TIME: turn.handle[Params.EXPIRY_TIME] - 57}
    fate = _fate(turns, variant, report, "less than 5 s of the hold left", prompt=prompt, handle=late)
    assert fate == ("500" if variant.connector is ConnectorKind.STOCK else "right")


@over(replace(STOCK, small_prefill=True), replace(GUARDED, small_prefill=True))
def test_trap_4_preemption_after_a_pull(turns: Turns, variant: Variant, report: Report) -> None:
    """A neighbour has what the prompt still needs: the prompt came last, so it loses its blocks and what it pulled."""
    facts, stock = turns.engines.facts, variant.connector is ConnectorKind.STOCK
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(200)
    pulled_blocks = -(-turn.handle[Params.NUM_TOKENS] // facts.block_size)
    # Room for what is pulled and one step of computing, but not for the whole prompt.
    neighbour = turns.words((facts.small_prefill_blocks - pulled_blocks - 4) * facts.block_size)
    body = turns.body(neighbour, 60, None)
    first = turns.aside(lambda: request(turns.engines.prefill, _COMPLETIONS, body, seconds=facts.answer_seconds))
    eventually(lambda: blocks_used(turns.engines.prefill) > len(neighbour) // facts.block_size, expected=True)
    wait = facts.answer_seconds + facts.hang_seconds
    second = turns.aside(lambda: outcome(turns, prompt, turn.handle, seconds=wait))
    assert first.result().status == http.client.OK
    try:
        fate, prefilled = second.result(facts.hang_seconds if stock else None)
    except TimeoutError:
        fate, prefilled = "hang", None
    if stock:
        report.add("trap 4: preempted after a pull", "stock", fate)
        assert fate == "hang"
        return
    assert prefilled is not None
    answer, _ = judge(report, turns, variant, "trap 4: preempted after a pull", prompt=prompt, prefilled=prefilled)
    assert (answer, prefilled.duplex[Duplex.REASON]) == ("right", Reason.PREEMPTED)


@over(STOCK, GUARDED)
def test_decode_gone_that_prefill_never_met(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(90)
    gone = {**_of_another_boot(turn.handle), Params.PORT: 1}
    started = time.monotonic()
    fate, prefilled = outcome(turns, prompt, gone, seconds=turns.engines.facts.answer_seconds)
    seconds = time.monotonic() - started
    if variant.connector is ConnectorKind.STOCK:
        report.add("decode gone, never met", "stock", fate, note=f"after {seconds:.0f} s")
        assert fate == "500"
        return
    assert prefilled is not None
    turns.drop(prefilled)
    truth = turns.plain(prompt, 1)
    report.add("decode gone, never met", "guarded", verdict(prefilled.tokens, truth), note=f"after {seconds:.0f} s")
    assert prefilled.tokens == truth


@over(STOCK, GUARDED)
def test_a_client_that_leaves_decode_leaves_no_hold(turns: Turns, variant: Variant, report: Report) -> None:
    before = blocks_used(turns.engines.decode)
    prompt = turns.words(PROMPT)
    prefilled = turns.prefill(prompt)
    _cancel_after_first_chunk(turns, prompt, prefilled)
    seen = eventually(lambda: blocks_used(turns.engines.decode), before)
    assert seen == before
    assert eventually(lambda: blocks_used(turns.engines.prefill), 0) == 0
    report.add("client leaves during decode", connector(variant), "nothing held on either side")


def _cancel_after_first_chunk(turns: Turns, prompt: list[int], prefilled: Reply) -> None:
    host, port = turns.engines.decode.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    body = {**turns.body(prompt, 600, prefilled.params), "stream": True}
    connection.request("POST", _COMPLETIONS, json.dumps(body).encode(), {"content-type": "application/json"})
    connection.getresponse().read(20)
    connection.close()


@over(STOCK, GUARDED)
def test_a_decode_leg_that_is_rejected_frees_prefills_blocks(turns: Turns, variant: Variant, report: Report) -> None:
    prompt = turns.words(PROMPT)
    prefilled = turns.prefill(prompt)
    assert eventually(lambda: blocks_used(turns.engines.prefill) > 0, expected=True)
    body = turns.body(prompt, 10, prefilled.params, model="no-such-model")
    assert request(turns.engines.decode, _COMPLETIONS, body).status == http.client.NOT_FOUND
    assert eventually(lambda: blocks_used(turns.engines.prefill), 0) == 0
    report.add("decode leg rejected before admission", connector(variant), "prefill's blocks freed")


@over(STOCK, GUARDED)
def test_decode_dies_after_they_met(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    turns.drop(turns.prefill(turn.history + turns.words(90), turn.handle))
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    turns.kill(Role.DECODE)
    prompt = turn.history + turns.words(90)
    fate, prefilled = outcome(turns, prompt, turn.handle, seconds=30)
    if variant.connector is ConnectorKind.STOCK:
        report.add("decode dies after they met", "stock", fate)
        assert fate == "500"
        return
    assert prefilled is not None
    truth = turns.plain(prompt, 1)
    report.add("decode dies after they met", "guarded", verdict(prefilled.tokens, truth))
    assert prefilled.tokens == truth


_LEASE: Final = 30


@over(STOCK, GUARDED)
def test_a_hand_off_is_not_read_after_its_lease(turns: Turns, variant: Variant, report: Report) -> None:
    prompt, free = turns.words(PROMPT), blocks_used(turns.engines.prefill)
    prefilled = turns.prefill(prompt)
    used = eventually(lambda: blocks_used(turns.engines.prefill), free, seconds=_LEASE + 10)
    assert used == free, "prefill still holds the hand-off"
    late = "vllm:nixl_num_notifications_after_expiry_total"
    before = samples(turns.engines.prefill).get(late, 0.0)
    seen = verdict(turns.decode(prompt, prefilled, ANSWER).tokens, turns.plain(prompt, ANSWER))
    stock = variant.connector is ConnectorKind.STOCK
    # A stock pair's answer is right for as long as nobody has written to the freed blocks: the simulator never is.
    assert stock or seen == "right"
    # An idle engine takes no notifications: let prefill make a step.
    request(turns.engines.prefill, _COMPLETIONS, turns.body(turns.words(5), 1, None))
    read = eventually(lambda: samples(turns.engines.prefill).get(late, 0.0) - before, 1.0 if stock else 0.0)
    assert read == (1.0 if stock else 0.0)
    note = "read after the lease" if stock else "computed by decode"
    report.add("decode leg 30 s after the prefill leg", connector(variant), seen, note=note)
