"""Conversations through the chat API: text goes out and comes back, and is tokenised anew each time."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from duplex_connector.contract import Duplex, Params
from duplex_connector.proof import Outcome

from .checks import GUARDED, STOCK, connector, over
from .report import Report
from .turns import CHAT, COLD, Reply, Turns, request
from .variants import MODEL, Variant

_REPLY = 40


def _ask(
    turns: Turns,
    url: str,
    messages: Sequence[object],
    most: int,
    params: Mapping[str, Any] | None,
    **more: Any,  # noqa: ANN401 - JSON
) -> Reply:
    body = {
        "model": MODEL,
        "messages": list(messages),
        "max_tokens": most,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }
    if params is not None:
        body[Params.FIELD] = dict(params)
    reply = request(url, CHAT, body, seconds=turns.engines.facts.answer_seconds)
    assert reply.status == http.client.OK, reply.body
    if url == turns.engines.decode:
        turns.release_at_the_end(reply)
    return reply


def _user(turns: Turns, sentences: int) -> dict[str, str]:
    numbers = [turns.random.randrange(10**6) for _ in range(sentences)]
    return {
        "role": "user",
        "content": " ".join(f"the cache holds {number} tokens of the prompt." for number in numbers),
    }


def _text(reply: Reply) -> str:
    text: str = reply.choice["message"]["content"]
    return text


@over(STOCK, GUARDED)
def test_a_chat_turn_equals_the_plain_engine(turns: Turns, variant: Variant, report: Report) -> None:
    messages = [_user(turns, 20)]
    prefilled = _ask(turns, turns.engines.prefill, messages, 1, COLD)
    answered = _ask(turns, turns.engines.decode, messages, _REPLY, prefilled.params)
    assert _text(answered) == _text(_ask(turns, turns.engines.plain, messages, _REPLY, None))
    assert answered.params[Params.DO_REMOTE_DECODE] is True
    report.add("chat, first turn", connector(variant), "right")


@over(GUARDED, replace(GUARDED, lossy=True))
def test_a_chat_continuation_reuses_what_is_proved(turns: Turns, variant: Variant, report: Report) -> None:
    messages = [_user(turns, 20)]
    prefilled = _ask(turns, turns.engines.prefill, messages, 1, COLD)
    answered = _ask(turns, turns.engines.decode, messages, _REPLY, prefilled.params)
    messages += [{"role": "assistant", "content": _text(answered)}, _user(turns, 5)]
    second = _ask(turns, turns.engines.prefill, messages, 1, answered.params)
    final = _ask(turns, turns.engines.decode, messages, _REPLY, second.params)
    assert _text(final) == _text(_ask(turns, turns.engines.plain, messages, _REPLY, None))
    # The first prompt at least, but for the end that the template writes otherwise once a reply follows.
    assert (
        second.duplex[Duplex.PULLED] >= prefilled.body["usage"]["prompt_tokens"] - 64 - turns.engines.facts.block_size
    )
    assert second.duplex[Duplex.OUTCOME] != Outcome.NONE
    words = "byte pairs" if variant.lossy else "words"
    # How many tokens a text has is the tokenizer's affair.
    report.add(
        f"chat, continuation, {words}", connector(variant), "right", note=f"{second.duplex[Duplex.PULLED]} pulled"
    )


@over(GUARDED)
def test_decode_may_be_given_prefills_token_ids(turns: Turns, variant: Variant, report: Report) -> None:
    """`kv_transfer_params.prompt_token_ids` (vLLM 0.32 and later) spares decode the template and the tokenizer."""
    messages = [_user(turns, 20)]
    prefilled = _ask(turns, turns.engines.prefill, messages, 1, COLD, return_token_ids=True)
    params = {**prefilled.params, "prompt_token_ids": prefilled.body["prompt_token_ids"]}
    other = [{"role": "user", "content": "another text altogether"}]
    answered = _ask(turns, turns.engines.decode, other, _REPLY, params, return_token_ids=True)
    assert answered.body["prompt_token_ids"] == prefilled.body["prompt_token_ids"]
    assert _text(answered) == _text(_ask(turns, turns.engines.plain, messages, _REPLY, None))
    report.add("decode given prefill's token ids", connector(variant), "right")
