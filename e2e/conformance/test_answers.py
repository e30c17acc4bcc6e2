"""Next turns of every shape: a guarded pair answers as the plain engine; a stock pair with the same handle does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from duplex_connector.contract import ConnectorKind, Duplex, Params
from duplex_connector.proof import Outcome, Reason

from .checks import ANSWER, GUARDED, PROMPT, STOCK, connector, judge, outcome, over, verdict
from .report import Report
from .turns import Turn, Turns, trimmed
from .variants import ADAPTER, Family, Variant

Next = Callable[[Turns, Turn], list[int]]

_SHAPES: Final[dict[str, tuple[Next, int]]] = {
    "thinking stripped": (lambda turns, turn: turn.prompt + turns.words(80), PROMPT),
    "last message edited": (lambda turns, turn: turn.prompt[:640] + turns.words(300), 640),
    "regenerated": (lambda _, turn: list(turn.prompt), PROMPT),
    "one token differs at 100": (
        lambda turns, turn: turn.prompt[:100] + turns.words(1) + turn.history[101:] + turns.words(60),
        100,
    ),
    "foreign handle": (lambda turns, _: turns.words(800), 0),
}
"""What the next prompt is, and how many of its tokens the held history shares."""


@over(STOCK, GUARDED, replace(STOCK, role_is_both=False), replace(GUARDED, role_is_both=False))
def test_a_continuation_reuses_everything(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(90)
    role = "both" if variant.role_is_both else "per role"
    answer, count = judge(
        report,
        turns,
        variant,
        f"continuation, kvRole {role}",
        prompt=prompt,
        prefilled=turns.prefill(prompt, turn.handle),
    )
    assert (answer, count) == ("right", PROMPT + ANSWER - 1)


@over(STOCK, GUARDED)
def test_many_turns_stay_right(turns: Turns, report: Report, variant: Variant) -> None:
    prompt, handle = turns.words(300), None
    for _ in range(4):
        turn = turns.turn(prompt, handle, most=ANSWER)
        assert turn.tokens == turns.plain(prompt, ANSWER)
        prompt, handle = turn.history + turns.words(70), turn.handle
    report.add("four turns", connector(variant), "right")


@over(GUARDED)
@pytest.mark.parametrize("shape", _SHAPES)
def test_what_is_proved_is_reused_and_the_answer_is_right(
    turns: Turns, variant: Variant, report: Report, shape: str
) -> None:
    following, common = _SHAPES[shape]
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = following(turns, turn)
    prefilled = turns.prefill(prompt, turn.handle)
    answer, count = judge(report, turns, variant, f"{shape}, untrimmed handle", prompt=prompt, prefilled=prefilled)
    assert answer == "right"
    # Marks stand every 64 tokens: what is proved lies less than that below what is common.
    assert common - 64 - turns.engines.facts.block_size < count <= common
    wanted = Outcome.PARTIAL if count else Outcome.NONE
    assert (prefilled.duplex[Duplex.OUTCOME], prefilled.duplex[Duplex.REASON]) == (wanted, Reason.DIVERGED)


@over(STOCK)
@pytest.mark.parametrize("shape", _SHAPES)
def test_a_stock_pair_answers_wrongly_with_the_same_handle(
    turns: Turns, variant: Variant, report: Report, shape: str
) -> None:
    """The negative control: without it the checks above have no teeth."""
    following, _ = _SHAPES[shape]
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = following(turns, turn)
    answer, count = judge(
        report,
        turns,
        variant,
        f"{shape}, untrimmed handle",
        prompt=prompt,
        prefilled=turns.prefill(prompt, turn.handle),
    )
    assert (answer, count) == ("wrong", min(len(prompt), PROMPT + ANSWER - 1))


@over(STOCK)
@pytest.mark.parametrize("shape", [shape for shape, (_, common) in _SHAPES.items() if common >= 64])
def test_a_trimmed_handle_is_right_on_a_stock_pair(turns: Turns, variant: Variant, report: Report, shape: str) -> None:
    following, common = _SHAPES[shape]
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = following(turns, turn)
    handle = trimmed(turn.handle, common, turns.engines.facts.block_size)
    answer, count = judge(
        report, turns, variant, f"{shape}, trimmed handle", prompt=prompt, prefilled=turns.prefill(prompt, handle)
    )
    assert (answer, count) == ("right", handle[Params.NUM_TOKENS])


@over(replace(STOCK, prefill_caching=True), replace(GUARDED, prefill_caching=True))
def test_a_wrong_handle_does_not_poison_the_prefix_cache(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turns.words(720)
    judge(
        report,
        turns,
        variant,
        "foreign handle, prefix caching on",
        prompt=prompt,
        prefilled=turns.prefill(prompt, turn.handle),
    )
    later = prompt + turns.words(40)
    answer = verdict(turns.turn(later, most=ANSWER).tokens, turns.plain(later, ANSWER))
    report.add("later request without a handle, same prompt", connector(variant), answer)
    assert answer == ("wrong" if variant.connector is ConnectorKind.STOCK else "right")


@over(replace(GUARDED, prefill_caching=True))
def test_with_prefix_caching_only_the_reply_is_pulled(turns: Turns, report: Report, variant: Variant) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(90)
    prefilled = turns.prefill(prompt, turn.handle, wishes={Duplex.THRESHOLD: 1})
    answer, count = judge(report, turns, variant, "continuation, prefix caching on", prompt=prompt, prefilled=prefilled)
    size = turns.engines.facts.block_size
    local = PROMPT // size * size
    assert answer == "right"
    assert (prefilled.duplex[Duplex.LOCAL], count) == (local, PROMPT + ANSWER - 1 - local)


@over(STOCK, GUARDED)
def test_another_salt_is_refused(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER, cache_salt="tenant-a")
    prompt = turn.history + turns.words(90)
    prefilled = turns.prefill(prompt, turn.handle, cache_salt="tenant-b")
    _, count = judge(report, turns, variant, "another cache salt", prompt=prompt, prefilled=prefilled)
    # A stock pair pulls another tenant's KV: no wrong answer, but a hole between tenants.
    assert count == (PROMPT + ANSWER - 1 if variant.connector is ConnectorKind.STOCK else 0)


@over(GUARDED)
def test_the_same_salt_is_reused(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER, cache_salt="tenant-a")
    prompt = turn.history + turns.words(90)
    prefilled = turns.prefill(prompt, turn.handle, cache_salt="tenant-a")
    answered = turns.decode(prompt, prefilled, ANSWER, cache_salt="tenant-a")
    assert answered.tokens == turns.plain(prompt, ANSWER)
    assert prefilled.duplex[Duplex.PULLED] == PROMPT + ANSWER - 1
    report.add("the same cache salt", connector(variant), "right", pulled=prefilled.duplex[Duplex.PULLED])


@over(replace(STOCK, adapters=True), replace(GUARDED, adapters=True))
def test_another_adapter_is_refused(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(90)
    prefilled = turns.prefill(prompt, turn.handle, model=ADAPTER)
    answered = turns.decode(prompt, prefilled, ANSWER, model=ADAPTER)
    answer = verdict(answered.tokens, turns.plain(prompt, ANSWER, model=ADAPTER))
    report.add("a base model's handle for an adapter", connector(variant), answer)
    assert answer == ("wrong" if variant.connector is ConnectorKind.STOCK else "right")


@over(replace(GUARDED, adapters=True))
def test_the_same_adapter_is_reused(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER, model=ADAPTER)
    prompt = turn.history + turns.words(90)
    prefilled = turns.prefill(prompt, turn.handle, model=ADAPTER)
    answered = turns.decode(prompt, prefilled, ANSWER, model=ADAPTER)
    assert answered.tokens == turns.plain(prompt, ANSWER, model=ADAPTER)
    assert prefilled.duplex[Duplex.PULLED] == PROMPT + ANSWER - 1
    report.add("the same adapter", connector(variant), "right", pulled=prefilled.duplex[Duplex.PULLED])


@over(replace(STOCK, family=Family.WINDOW), replace(GUARDED, family=Family.WINDOW))
def test_a_window_model_reuses_all_or_nothing(turns: Turns, variant: Variant, report: Report) -> None:
    guarded = variant.connector is ConnectorKind.GUARDED
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(90)
    answer, count = judge(
        report,
        turns,
        variant,
        "window model, continuation",
        prompt=prompt,
        prefilled=turns.prefill(prompt, turn.handle),
    )
    assert (answer, count) == ("right", PROMPT + ANSWER - 1)
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.prompt[:640] + turns.words(300)
    prefilled = turns.prefill(prompt, turn.handle)
    answer, count = judge(report, turns, variant, "window model, edited", prompt=prompt, prefilled=prefilled)
    assert answer == ("right" if guarded else "wrong")
    if guarded:
        assert (count, prefilled.duplex[Duplex.REASON]) == (0, Reason.ALL_OR_NOTHING)


_MALFORMED: Final[dict[str, Callable[[dict[str, object]], dict[str, object]]]] = {
    "ids cut without the count": lambda ids: {**ids, Params.BLOCK_IDS: [ids[Params.BLOCK_IDS][0][:10]]},  # type: ignore[index]
    "a flat list of ids": lambda ids: {**ids, Params.BLOCK_IDS: ids[Params.BLOCK_IDS][0]},  # type: ignore[index]
    "an id out of range": lambda ids: {**ids, Params.BLOCK_IDS: [[10**7] * len(ids[Params.BLOCK_IDS][0])]},  # type: ignore[index]
    "a count that is text": lambda ids: {**ids, Params.NUM_TOKENS: "many"},
}
_STOCK_FATE: Final = {
    "ids cut without the count": "engine dead",
    "a flat list of ids": "engine dead",
    "an id out of range": "500",
    "a count that is text": "engine dead",
}


@over(STOCK, GUARDED)
@pytest.mark.parametrize("shape", _MALFORMED)
def test_malformed_handles(turns: Turns, variant: Variant, report: Report, shape: str) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prompt = turn.history + turns.words(90)
    fate, prefilled = outcome(turns, prompt, _MALFORMED[shape](turn.handle), seconds=turns.engines.facts.answer_seconds)
    if variant.connector is ConnectorKind.STOCK:
        report.add(f"malformed: {shape}", "stock", fate)
        assert fate == _STOCK_FATE[shape]
        return
    assert prefilled is not None
    answer, count = judge(report, turns, variant, f"malformed: {shape}", prompt=prompt, prefilled=prefilled)
    assert (fate, answer, count) == ("200", "right", 0)
    assert prefilled.duplex[Duplex.REASON] == Reason.MALFORMED
