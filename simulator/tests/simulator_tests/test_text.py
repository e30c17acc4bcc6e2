"""Tokenizer, templates and the model: round trips, thinking, determinism."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex_simulator.chain import mix
from duplex_simulator.model import LanguageModel
from duplex_simulator.template import TemplateError, TemplateKind, render
from duplex_simulator.tokenizer import CORRUPT, CORRUPT_MARK, END_THINK, EOS, THINK, Tokenizer

TOKENIZER = Tokenizer()


@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_special_tokens_are_one_token_each() -> None:
    assert TOKENIZER.encode(f"<think>the cache</think>{CORRUPT_MARK}<|im_end|>") == [
        THINK,
        *TOKENIZER.encode("the cache"),
        END_THINK,
        CORRUPT,
        EOS,
    ]


def test_all_ids_below_the_size_decode() -> None:
    assert TOKENIZER.decode(range(TOKENIZER.size))
    assert len({TOKENIZER.bytes_of([token]) for token in range(272, TOKENIZER.size)}) == TOKENIZER.size - 272


def _reply(model: LanguageModel, prompt: list[int], most: int = 400) -> list[int]:
    cell, history = 7, list(prompt)
    for token in prompt:
        cell = mix(cell, token)
    while len(history) - len(prompt) < most:
        token = model.next_token(cell, history, marked=False)
        history.append(token)
        cell = mix(cell, token)
        if token == EOS:
            break
    return history[len(prompt) :]


def _prompt(kind: TemplateKind, text: str) -> list[int]:
    return TOKENIZER.encode(render([{"role": "user", "content": text}], kind=kind))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("thinks", [False, True])
def test_replies_encode_to_the_tokens_that_were_said(seed: int, thinks: bool) -> None:  # noqa: FBT001 - a pytest parameter
    reply = _reply(LanguageModel(TOKENIZER, seed, thinks=thinks), _prompt(TemplateKind.PLAIN, f"question {seed}"))
    assert reply[-1] == EOS
    assert len(reply) > 12
    assert TOKENIZER.encode(TOKENIZER.decode(reply)) == reply


def test_lossy_replies_do_not() -> None:
    model = LanguageModel(TOKENIZER, lossy=True)
    replies = [_reply(model, _prompt(TemplateKind.PLAIN, f"question {index}")) for index in range(10)]
    assert sum(TOKENIZER.encode(TOKENIZER.decode(reply)) != reply for reply in replies) >= 8


def test_the_thinking_model_thinks_once_and_first() -> None:
    reply = _reply(LanguageModel(TOKENIZER, thinks=True), _prompt(TemplateKind.STRIPS_THINKING, "why"))
    assert reply[0] == THINK
    assert (reply.count(THINK), reply.count(END_THINK)) == (1, 1)
    assert reply.index(END_THINK) < len(reply) - 2


def test_without_thinking_the_prompt_carries_an_empty_thought_and_the_model_thinks_no_more() -> None:
    text = render([{"role": "user", "content": "why"}], kind=TemplateKind.STRIPS_THINKING, thinking=False)
    assert text.endswith("<think>\n\n</think>\n\n")
    assert THINK not in _reply(LanguageModel(TOKENIZER, thinks=True), TOKENIZER.encode(text))


def test_wrong_kv_is_said_first_and_other_weights_say_other_words() -> None:
    prompt = _prompt(TemplateKind.PLAIN, "why")
    assert LanguageModel(TOKENIZER).next_token(5, prompt, marked=True) == CORRUPT
    assert _reply(LanguageModel(TOKENIZER, 1), prompt) != _reply(LanguageModel(TOKENIZER, 2), prompt)


MESSAGES = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "<think>hm</think>two"},
    {"role": "user", "content": [{"type": "text", "text": "three"}]},
]


def test_the_plain_template_extends_the_last_prompt() -> None:
    first = render(MESSAGES[:1], kind=TemplateKind.PLAIN)
    second = render(MESSAGES, kind=TemplateKind.PLAIN)
    assert second.startswith(first + "<think>hm</think>two<|im_end|>\n")


def test_the_stripping_template_drops_thoughts_before_the_last_user_message_only() -> None:
    assert "<think>" not in render(MESSAGES, kind=TemplateKind.STRIPS_THINKING)
    looping = [*MESSAGES[:2], {"role": "tool", "content": "result"}]
    assert "<think>hm</think>two" in render(looping, kind=TemplateKind.STRIPS_THINKING)


def test_tools_are_part_of_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    assert render(MESSAGES, kind=TemplateKind.PLAIN, tools=tools) != render(MESSAGES, kind=TemplateKind.PLAIN)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "empty"),
        ([{"content": "x"}], "role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "text only"),
        ([{"role": "user", "content": 5}], "string or a list"),
    ],
)
def test_what_cannot_be_rendered_is_refused(messages: list[dict[str, object]], says: str) -> None:
    with pytest.raises(TemplateError, match=says):
        render(messages, kind=TemplateKind.PLAIN)
