"""Answers are compared by what they say: not by chance, nor by where a stream was cut."""

import copy
from typing import Any

import pytest

from harness.answers import difference, joined, tells_params, without_chance

HEAD = {"id": "1", "created": 5, "object": "chat.completion.chunk", "model": "m"}


def chunk(text: str | None, *, index: int = 0, finish: str | None = None) -> dict[str, Any]:
    tokens = [{"token": text, "logprob": -1.0}] if text else []
    delta = {"content": text, "role": None if text else "assistant"}
    choice = {"index": index, "delta": delta, "logprobs": {"content": tokens}, "finish_reason": finish}
    return {**HEAD, "choices": [choice], "usage": None}


END = {**HEAD, "choices": [], "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}


def text_delta(text: str, index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}


def test_chunks_that_were_cut_otherwise_are_equal() -> None:
    fine = [chunk(None), chunk("one "), chunk("two "), chunk("three", finish="stop"), END]
    coarse = [chunk(None), chunk("one two "), chunk("three", finish="stop"), END]
    coarse[1]["choices"][0]["logprobs"] = {"content": [{"token": each, "logprob": -1.0} for each in ("one ", "two ")]}
    assert difference(joined(fine), joined(coarse)) == ""


def test_choices_that_came_in_another_order_are_equal() -> None:
    one, other = chunk("a", index=0), chunk("b", index=1)
    assert joined([one, other, END]) == joined([other, one, END])


def test_events_that_were_cut_otherwise_are_equal() -> None:
    start, stop = {"type": "content_block_start", "index": 0}, {"type": "content_block_stop", "index": 0}
    fine = [start, text_delta("a"), text_delta("b"), stop, text_delta("c", 1)]
    assert joined(fine) == joined([start, text_delta("ab"), stop, text_delta("c", 1)])
    assert joined(fine) != joined([start, text_delta("ab"), text_delta("c", 1), stop])
    numbered = [
        {"type": "response.output_text.delta", "delta": each, "sequence_number": n} for n, each in enumerate("ab")
    ]
    assert joined(numbered) == [{"type": "response.output_text.delta", "delta": "ab"}]


@pytest.mark.parametrize("lost", range(5))
def test_a_part_that_is_lost_is_a_difference(lost: int) -> None:
    whole = [chunk(None), chunk("one "), chunk("two "), chunk("three", finish="stop"), END]
    assert difference(joined(whole[:lost] + whole[lost + 1 :]), joined(whole))


def test_chance_is_left_out_and_nothing_else_is() -> None:
    other = copy.deepcopy(END)
    other |= {"id": "2", "created": 6, "system_fingerprint": "f"}
    other["usage"]["prompt_tokens_details"] = None
    assert without_chance(END) == without_chance(other)
    other["usage"]["prompt_tokens"] = 4
    assert difference(without_chance([END]), without_chance([other])) == "[0].usage.prompt_tokens: 3 is not 4"


def test_numbers_may_be_rounded_otherwise() -> None:
    assert difference({"logprob": -1.0}, {"logprob": -1.0004}) == ""
    assert difference({"logprob": -1.0}, {"logprob": -1.004}) == ".logprob: -1.0 is not -1.004"


def test_a_field_that_only_one_has_is_a_difference() -> None:
    assert difference({"a": 1, "b": None}, {"a": 1}) == ".b: None is not '(absent)'"
    assert difference({"a": 1}, {"a": 1, "c": 2}) == ".c: '(absent)' is not 2"


def test_params_are_seen_wherever_they_stand() -> None:
    assert not tells_params([{"kv_transfer_params": None}])
    assert tells_params([{"type": "response.completed", "response": {"kv_transfer_params": {"remote_port": 1}}}])
