"""The keys of every answer, where streams carry them, and which endings leave a hold."""

from __future__ import annotations

import time
from typing import Any

import pytest

from duplex_connector.contract import LEASE_MODEL, ConnectorKind, Duplex, Params

from .checks import ANSWER, GUARDED, PROMPT, STOCK, connector, over
from .report import Report
from .turns import ALONE, CHAT, COLD, COMPLETIONS, Turns, blocks_used, eventually, request, stream
from .variants import MODEL, Variant

_COMMON = {
    Params.DO_REMOTE_PREFILL,
    Params.DO_REMOTE_DECODE,
    Params.BLOCK_IDS,
    Params.ENGINE_ID,
    Params.REQUEST_ID,
    Params.HOST,
    Params.PORT,
    Params.TP_SIZE,
    Params.DCP_SIZE,
    Params.PP_SIZE,
    Params.NUM_TOKENS,
    Params.EXPIRY_TIME,
    "transfer_mode",
}
_PROOF = {Duplex.STEP, Duplex.MARKS, Duplex.COUNT, Duplex.LAST, Duplex.GROUPS, Duplex.BLOCKS}
_REPORT = {Duplex.PROVED, Duplex.PULLED, Duplex.LOCAL, Duplex.COMPUTED, Duplex.OUTCOME, Duplex.REASON}


@over(STOCK, GUARDED)
def test_keys_of_both_answers(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    prefilled, handle = turn.prefill.params, turn.handle
    guarded = variant.connector is ConnectorKind.GUARDED
    assert set(prefilled) >= _COMMON | {Params.CACHED_TOKENS}
    assert set(handle) >= _COMMON
    assert (prefilled[Params.DO_REMOTE_PREFILL], prefilled[Params.DO_REMOTE_DECODE]) == (True, False)
    assert (handle[Params.DO_REMOTE_PREFILL], handle[Params.DO_REMOTE_DECODE]) == (False, True)
    assert prefilled[Params.NUM_TOKENS] == PROMPT
    # A stock decode engine reads a hand-off however late.
    assert isinstance(prefilled[Params.EXPIRY_TIME], float if guarded else type(None))
    assert handle[Params.NUM_TOKENS] == PROMPT + ANSWER - 1
    assert isinstance(handle[Params.EXPIRY_TIME], float)
    blocks = -(-handle[Params.NUM_TOKENS] // turns.engines.facts.block_size)
    assert [len(group) for group in handle[Params.BLOCK_IDS]] == [blocks]
    assert set(turn.prefill.duplex) == (_PROOF | _REPORT if guarded else set())
    assert set(turn.decode.duplex) == (_PROOF if guarded else set())
    report.add("keys of both answers", variant.connector.value.lower(), "as specified")


def _body(path: str, turns: Turns, most: int) -> dict[str, Any]:
    if path == COMPLETIONS:
        return turns.body(turns.words(200), most, None)
    text = " ".join(f"word{turns.random.randrange(10**6)}" for _ in range(60))
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": most, "temperature": 0}


@over(STOCK, GUARDED)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_carries_the_handle_in_its_finish_chunk(turns: Turns, path: str, usage: bool) -> None:  # noqa: FBT001 - a pytest parameter
    if not turns.engines.facts.streams_params:
        pytest.fail("these engines do not stream kv_transfer_params: run 0.33 or the streaming plugin")
    body = _body(path, turns, 8) | {Params.FIELD: dict(COLD)}
    prefilled = request(turns.engines.prefill, path, {**body, "max_tokens": 1})
    options = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = stream(turns.engines.decode, path, {**body, Params.FIELD: prefilled.params, "ignore_eos": True, **options})
    with_choices = [chunk for chunk in chunks if chunk["choices"]]
    finished = [chunk for chunk in with_choices if chunk["choices"][0].get("finish_reason")]
    assert len(finished) == 1
    assert finished[0] is with_choices[-1]
    assert finished[0][Params.FIELD][Params.DO_REMOTE_DECODE] is True
    assert [chunk for chunk in chunks if chunk.get(Params.FIELD)] == finished
    contents = with_choices[1:-1] if path == CHAT else with_choices[:-1]
    assert all(Params.FIELD in chunk and chunk[Params.FIELD] is None for chunk in contents)
    assert [bool(chunk["choices"]) for chunk in chunks[len(with_choices) :]] == ([False] if usage else [])
    if usage:
        assert chunks[-1]["usage"]["completion_tokens"] == 8


@over(STOCK, GUARDED)
def test_a_turn_of_decode_alone(turns: Turns, variant: Variant, report: Report) -> None:
    """It leaves a hold only where params were sent; a stock engine never frees that one, whoever reads it."""
    without = request(turns.engines.decode, COMPLETIONS, turns.body(turns.words(200), 8, None))
    assert without.params == {}
    before = blocks_used(turns.engines.decode)
    prompt = turns.words(200)
    kept = request(turns.engines.decode, COMPLETIONS, turns.body(prompt, 8, ALONE))
    assert kept.params[Params.NUM_TOKENS] == 200 + 8 - 1
    following = prompt + kept.tokens + turns.words(40)
    prefilled = turns.prefill(following, kept.params)
    assert prefilled.tokens == turns.plain(following, 1)
    turns.drop(prefilled)
    pinned = 0 if variant.connector is ConnectorKind.GUARDED else -(-207 // turns.engines.facts.block_size)
    seen = eventually(lambda: blocks_used(turns.engines.decode), before + pinned)
    # Long enough for a notification that would still free them.
    time.sleep(1)
    assert (seen, blocks_used(turns.engines.decode)) == (before + pinned, before + pinned)
    report.add("decode alone, then pulled: blocks still pinned", connector(variant), str(pinned))


@over(STOCK, GUARDED)
def test_stop_strings_leave_no_hold(turns: Turns, variant: Variant, report: Report) -> None:
    prompt = turns.words(PROMPT)
    before = blocks_used(turns.engines.decode)
    text = request(turns.engines.plain, COMPLETIONS, turns.body(prompt, 20, None)).choice["text"]
    prefilled = turns.prefill(prompt)
    stop = text[len(text) // 2 :][:6]
    stopped = turns.decode(prompt, prefilled, 20, stop=[stop])
    assert stopped.choice["finish_reason"] == "stop"
    assert stopped.choice["stop_reason"] == stop
    assert stop not in stopped.choice["text"]
    assert stopped.params == {}
    assert eventually(lambda: blocks_used(turns.engines.decode), before) == before
    report.add("ended by a stop string", variant.connector.value.lower(), "no hold")


@over(STOCK, GUARDED)
def test_errors_have_vllms_shape(turns: Turns) -> None:
    reply = request(turns.engines.plain, COMPLETIONS, {"model": LEASE_MODEL, "prompt": "x", "max_tokens": 1})
    assert reply.status == 404
    assert {"message", "type", "param", "code"} <= set(reply.body["error"])
    assert reply.body["error"]["type"] == "NotFoundError"
    long = request(turns.engines.plain, COMPLETIONS, turns.body(turns.words(200), 10**7, None))
    assert long.status == 400
    assert long.body["error"]["type"] == "BadRequestError"
