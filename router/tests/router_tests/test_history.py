"""Histories: equal content gives equal digests, and everything that decides the prompt tells them apart."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from duplex_router.ledger.canonical import escaped, text_bytes
from duplex_router.ledger.chain import STRIDE_BYTES, Chain, stride_at
from duplex_router.ledger.history import History
from duplex_router.ledger.reading import read_history
from duplex_router.wire.errors import RequestError
from duplex_router.wire.inference import Endpoint, parse_inference
from duplex_router.wire.reply import Observer, Reply

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": 'What is \u00e4?\n"x"'}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


TOKEN_STRIDE = STRIDE_BYTES // 4


def history_of(body: dict[str, Any] | bytes, endpoint: Endpoint = Endpoint.CHAT, *, proved: bool = True) -> History:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = read_history(parse_inference(endpoint, raw), proved=proved)
    assert found is not None
    return found


def chat(*messages: dict[str, Any], proved: bool = True, **more: Any) -> History:
    return history_of({"model": "m", "messages": list(messages), **more}, proved=proved)


def exact(*messages: dict[str, Any], **more: Any) -> History:
    return chat(*messages, proved=False, **more)


def test_a_longer_conversation_extends_the_marks() -> None:
    short, long = chat(SYSTEM, ASK), chat(SYSTEM, ASK, {"role": "assistant", "content": "a"}, ASK)
    assert long.marks[:2] == short.marks
    assert long.begins_with(short.whole, short.length)
    assert not short.begins_with(long.whole, long.length)


def test_another_serialisation_is_the_same_history() -> None:
    pretty = json.dumps({"messages": [dict(reversed(SYSTEM.items())), ASK], "model": "m"}, indent=2, ensure_ascii=False)
    assert history_of(pretty.encode()).marks == chat(SYSTEM, ASK).marks


@given(st.text(st.characters(codec="utf-8") | st.sampled_from('"\\/\n\x01\x7f')))
def test_each_spelling_of_a_text_has_the_same_bytes(text: str) -> None:
    spelt = [json.dumps(text), json.dumps(text).replace("/", "\\/"), json.dumps(text, ensure_ascii=False)]
    assert {text_bytes(Raw(each.encode())) for each in spelt} == {escaped(text)}


def test_texts_that_differ_by_an_escape_alone_differ() -> None:
    texts = ["a\nb", "a\\nb", 'a"b', "a/b", "\u00e4", "\\u00e4"]
    assert len({escaped(text) for text in texts}) == len(texts)


def test_a_text_that_is_not_utf_8_is_refused() -> None:
    for body in (b'{"messages":[{"role":"user","content":"\xff"}]}', b'{"messages":[{"role":"\xff","content":""}]}'):
        with pytest.raises(RequestError, match="messages"):
            history_of(body)
    with pytest.raises(RequestError, match="prompt"):
        history_of(b'{"prompt":"\xff"}', Endpoint.COMPLETIONS)


def test_sampling_does_not_matter_and_what_shapes_the_prompt_does_where_nothing_is_proved() -> None:
    plain = exact(ASK)
    assert exact(ASK, temperature=0.1, seed=3, user="u", max_tokens=5, stream=True).marks == plain.marks
    assert exact(ASK, stop=["x"], n=1, session_id="s", tools=None).marks == plain.marks
    for more in (
        {"tools": [{"type": "function"}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"cache_salt": "s"},
        {"a_field_of_tomorrow": 1},
    ):
        assert exact(ASK, **more).marks != plain.marks
    assert history_of({"model": "other", "messages": [ASK]}, proved=False).marks != plain.marks


def test_where_tokens_are_proved_only_what_decides_every_token_parts_histories() -> None:
    plain = chat(ASK)
    for more in ({"chat_template_kwargs": {"enable_thinking": False}}, {"tool_choice": "none"}, {"a_field": 1}):
        assert chat(ASK, **more).marks == plain.marks
        assert chat(ASK, **more).shape != plain.shape
    for more in ({"cache_salt": "s"}, {"chat_template": "{{ messages }}"}):
        assert chat(ASK, **more).marks != plain.marks
    assert history_of({"model": "other", "messages": [ASK]}).marks != plain.marks


def test_tools_come_before_messages_and_a_new_one_keeps_what_stands_before_it() -> None:
    first, second = {"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}
    one, both = chat(ASK, tools=[first]), chat(ASK, tools=[first, second])
    assert one.marks[0] == both.marks[0]
    assert one.marks[1] != both.marks[1]
    assert (one.parts(1), one.parts(2), both.parts(3)) == (0, 1, 1)


@pytest.mark.parametrize("proved", [True, False])
@pytest.mark.parametrize(
    "changed",
    [
        {"role": "user", "content": "What is a?"},
        {"role": "system", "content": ASK["content"]},
        {**ASK, "name": "ann"},
        {"role": "user", "content": [{"type": "text", "text": ASK["content"]}, {"type": "text", "text": "x"}]},
        {"role": "user", "content": [{"type": "text", "text": ASK["content"], "more": 1}]},
        {"role": "user", "content": None},
    ],
)
def test_a_changed_message_changes_its_mark_and_all_after_it(changed: dict[str, Any], proved: bool) -> None:  # noqa: FBT001 - a parameter of the test
    one, other = chat(SYSTEM, ASK, SYSTEM, proved=proved), chat(SYSTEM, changed, SYSTEM, proved=proved)
    assert one.marks[0] == other.marks[0]
    assert one.marks[1] != other.marks[1]
    assert one.marks[2] != other.marks[2]


@pytest.mark.parametrize("proved", [True, False])
@pytest.mark.parametrize(
    "same",
    [
        {"content": ASK["content"], "role": "user"},
        {**ASK, "name": None, "tool_calls": None},
        {"role": "user", "content": [{"type": "text", "text": ASK["content"]}]},
        {"role": "user", "content": [{"text": ASK["content"], "type": "text"}], "refusal": None},
    ],
)
def test_another_spelling_of_a_message_is_the_same(same: dict[str, Any], proved: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert chat(SYSTEM, same, SYSTEM, proved=proved).marks == chat(SYSTEM, ASK, SYSTEM, proved=proved).marks


def test_a_text_that_was_changed_late_shares_the_marks_before() -> None:
    text = "word " * 400
    one = chat(SYSTEM, {"role": "user", "content": text + "x"})
    other = chat(SYSTEM, {"role": "user", "content": text + "y"})
    shared = sum(first == second for first, second in zip(one.marks, other.marks, strict=True))
    assert shared == 1 + len(text) // STRIDE_BYTES
    assert one.marks[-1] != other.marks[-1]


@given(st.lists(st.binary(max_size=2000), max_size=8), st.data())
def test_marks_do_not_depend_on_how_a_part_is_cut(parts: list[bytes], data: st.DataObject) -> None:
    whole, pieces = Chain(b"seed"), Chain(b"seed")
    for part in parts:
        whole.add(part)
        cut = data.draw(st.integers(0, len(part)))
        pieces.add(part[:cut])
        pieces = pieces.copy()
        pieces.add(part[cut:])
        for chain in (whole, pieces):
            chain.close()
    assert whole.marks == pieces.marks
    assert whole.digest() == pieces.digest()


def test_a_long_history_has_few_marks_and_none_is_far_from_the_next() -> None:
    chain = Chain(b"")
    chain.add(b"x" * 2_000_000)
    assert len(chain.marks) < 250
    assert all(stride_at(offset) <= max(STRIDE_BYTES, offset / 32) for offset in range(0, 4_000_000, 997))


def test_messages_cannot_run_into_one_another() -> None:
    assert chat({"role": "user", "content": "ab"}, {"role": "user", "content": ""}).whole != (
        chat({"role": "user", "content": "a"}, {"role": "user", "content": "b"}).whole
    )


def reply_of(message: dict[str, Any]) -> Reply:
    observer = Observer()
    observer.pass_on(json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode())
    return observer.reply


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ({"content": "Hi."}, {"role": "assistant", "content": "Hi."}),
        ({"content": "Hi."}, {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}),
        ({"content": "Hi.", "reasoning": "hm"}, {"role": "assistant", "content": "Hi.", "refusal": None}),
        ({"content": "Hi."}, {"role": "assistant", "content": "Hi.", "reasoning_content": "hm"}),
        ({"content": None, "tool_calls": [CALL]}, {"role": "assistant", "tool_calls": [{**CALL, "id": "other"}]}),
        (
            {"content": "", "tool_calls": [CALL]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}]},
        ),
        (
            {"content": "", "tool_calls": [CALL]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        ),
    ],
)
def test_a_reply_is_known_again(said: dict[str, Any], sent: dict[str, Any]) -> None:
    kept = chat(ASK).continued(reply_of(said))
    assert chat(ASK, sent, ASK).marks[: len(kept)] == kept


@pytest.mark.parametrize(
    "sent",
    [
        {"role": "assistant", "content": "Ho."},
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hi.", "tool_calls": [CALL]},
        {"role": "assistant", "content": 3},
        {"role": "assistant", "tool_calls": ["not a call"]},
    ],
)
def test_another_reply_is_told_apart(sent: dict[str, Any]) -> None:
    kept = chat(ASK).continued(reply_of({"content": "Hi."}))
    found = chat(ASK, sent, ASK).marks
    assert found[0] == kept[0]
    assert found[1] != kept[1]


def test_calls_with_other_arguments_are_told_apart() -> None:
    other = {"function": {"name": "f", "arguments": '{"a": 2}'}}
    kept = chat(ASK).continued(reply_of({"content": "", "tool_calls": [CALL]}))
    assert chat(ASK, {"role": "assistant", "tool_calls": [other]}).marks[1] != kept[1]


def test_the_id_of_a_call_counts_only_where_nothing_is_proved() -> None:
    answers = [{"role": "tool", "tool_call_id": name, "content": "found"} for name in ("c1", "c2")]
    assert chat(ASK, answers[0]).marks == chat(ASK, answers[1]).marks
    assert exact(ASK, answers[0]).marks != exact(ASK, answers[1]).marks


def test_asking_for_marks_after_a_reply_leaves_the_history_as_it_was() -> None:
    history = chat(ASK)
    before = list(history.marks)
    history.continued(reply_of({"content": "Hi."}))
    assert history.marks == before


def test_token_ids_match_by_strides_and_know_their_count() -> None:
    ids = list(range(3 * TOKEN_STRIDE + 5))
    one = history_of({"model": "m", "prompt": ids}, Endpoint.COMPLETIONS)
    longer = history_of({"model": "m", "prompt": [*ids, 7, 8]}, Endpoint.COMPLETIONS)
    other = history_of({"model": "m", "prompt": [*ids[:-1], 99, 7, 8]}, Endpoint.COMPLETIONS)
    assert len(one.marks) == 3
    assert longer.marks == one.marks == other.marks
    assert one.tokens_at(2) == 2 * TOKEN_STRIDE
    assert one.continued(reply_of({"content": "text"})) == one.marks
    assert longer.begins_with(one.whole, one.length)
    assert not other.begins_with(one.whole, one.length)


def test_text_matches_by_strides_and_knows_no_count() -> None:
    text = "a\u00e4" * STRIDE_BYTES
    one = history_of({"prompt": text}, Endpoint.COMPLETIONS)
    longer = history_of({"prompt": text + "more"}, Endpoint.COMPLETIONS)
    assert longer.marks[: len(one.marks)] == one.marks
    assert longer.begins_with(one.whole, one.length)
    assert len(one.marks) == 3
    assert (
        one.continued(reply_of({"content": "more" * 64}))
        == history_of({"prompt": text + "more" * 64}, Endpoint.COMPLETIONS).marks
    )
    assert one.tokens_at(1) is None
    assert one.boundary(77) == ()


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.CHAT, {}),
        (Endpoint.CHAT, {"messages": []}),
        (Endpoint.CHAT, {"messages": "hi"}),
        (Endpoint.CHAT, {"messages": [1]}),
        (Endpoint.CHAT, {"messages": [{"role": 1, "content": "x"}]}),
        (Endpoint.COMPLETIONS, {}),
        (Endpoint.COMPLETIONS, {"prompt": [1, -2]}),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2.5]}),
        (Endpoint.COMPLETIONS, {"prompt": [2**40]}),
    ],
)
def test_malformed_content_is_refused(endpoint: Endpoint, body: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as error:
        history_of(body, endpoint)
    assert error.value.status == 400


@pytest.mark.parametrize("body", [{"prompt": ["a", "b"]}, {"prompt_embeds": "x"}, {"prompt": None}])
def test_content_that_cannot_be_followed(body: dict[str, Any]) -> None:
    assert read_history(parse_inference(Endpoint.COMPLETIONS, json.dumps(body).encode()), proved=True) is None
