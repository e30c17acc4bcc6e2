"""Histories: equal content gives equal digests, and everything that decides the prompt tells them apart."""

import json
from typing import Any

import pytest

from duplex_router.ledger.history import TEXT_STRIDE, TOKEN_STRIDE, History, reply_digest
from duplex_router.ledger.reading import read_history
from duplex_router.wire.errors import RequestError
from duplex_router.wire.inference import Endpoint, parse_inference
from duplex_router.wire.reply import Observer

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": 'What is \u00e4?\n"x"'}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def history_of(body: dict[str, Any] | bytes, endpoint: Endpoint = Endpoint.CHAT, tenant: bytes = b"") -> History:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = read_history(parse_inference(endpoint, raw), tenant)
    assert found is not None
    return found


def chat(*messages: dict[str, Any], **more: Any) -> History:
    return history_of({"model": "m", "messages": list(messages), **more})


def test_a_longer_conversation_extends_the_marks() -> None:
    short, long = chat(SYSTEM, ASK), chat(SYSTEM, ASK, {"role": "assistant", "content": "a"}, ASK)
    assert long.marks[:2] == short.marks
    assert long.begins_with(short.whole, short.length)
    assert not short.begins_with(long.whole, long.length)


def test_another_serialisation_is_the_same_history() -> None:
    pretty = json.dumps({"messages": [dict(reversed(SYSTEM.items())), ASK], "model": "m"}, indent=2, ensure_ascii=False)
    assert history_of(pretty.encode()).marks == chat(SYSTEM, ASK).marks


def test_sampling_does_not_matter_and_what_shapes_the_prompt_does() -> None:
    plain = chat(ASK)
    assert chat(ASK, temperature=0.1, seed=3, user="u", max_tokens=5, stream=True).marks == plain.marks
    assert chat(ASK, stop=["x"], n=1, session_id="s").marks == plain.marks
    for more in (
        {"tools": [{"type": "function"}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"cache_salt": "s"},
        {"a_field_of_tomorrow": 1},
    ):
        assert chat(ASK, **more).marks != plain.marks
    assert history_of({"model": "other", "messages": [ASK]}).marks != plain.marks
    assert history_of({"model": "m", "messages": [ASK]}, tenant=b"t").marks != plain.marks


@pytest.mark.parametrize(
    "changed",
    [
        {"role": "user", "content": "What is a?"},
        {"role": "system", "content": ASK["content"]},
        {**ASK, "name": "ann"},
        {"role": "user", "content": [{"type": "text", "text": ASK["content"]}]},
        {"role": "user", "content": None},
    ],
)
def test_a_changed_message_changes_its_mark_and_all_after_it(changed: dict[str, Any]) -> None:
    one, other = chat(SYSTEM, ASK, SYSTEM), chat(SYSTEM, changed, SYSTEM)
    assert one.marks[0] == other.marks[0]
    assert one.marks[1] != other.marks[1]
    assert one.marks[2] != other.marks[2]


def test_messages_cannot_run_into_one_another() -> None:
    assert chat({"role": "user", "content": "ab"}, {"role": "user", "content": ""}).whole != (
        chat({"role": "user", "content": "a"}, {"role": "user", "content": "b"}).whole
    )


def observed(message: dict[str, Any]) -> bytes:
    observer = Observer()
    observer.pass_on(json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode())
    return reply_digest(observer.reply)


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ({"content": "Hi."}, {"role": "assistant", "content": "Hi."}),
        ({"content": "Hi."}, {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}),
        ({"content": "Hi.", "reasoning": "hm"}, {"role": "assistant", "content": "Hi.", "refusal": None}),
        ({"content": None, "tool_calls": [CALL]}, {"role": "assistant", "tool_calls": [{**CALL, "id": "other"}]}),
    ],
)
def test_a_reply_is_known_again(said: dict[str, Any], sent: dict[str, Any]) -> None:
    assert chat(ASK, sent, ASK).replied_with(1, observed(said))


@pytest.mark.parametrize(
    "sent",
    [
        {"role": "assistant", "content": "Ho."},
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hi.", "tool_calls": [CALL]},
        {"role": "assistant", "content": 3},
    ],
)
def test_another_reply_is_told_apart(sent: dict[str, Any]) -> None:
    assert not chat(ASK, sent, ASK).replied_with(1, observed({"content": "Hi."}))


def test_there_is_no_reply_beyond_the_end() -> None:
    assert not chat(ASK).replied_with(1, observed({"content": "Hi."}))


def test_token_ids_match_by_strides_and_know_their_count() -> None:
    ids = list(range(3 * TOKEN_STRIDE + 5))
    one = history_of({"model": "m", "prompt": ids}, Endpoint.COMPLETIONS)
    longer = history_of({"model": "m", "prompt": [*ids, 7, 8]}, Endpoint.COMPLETIONS)
    other = history_of({"model": "m", "prompt": [*ids[:-1], 99, 7, 8]}, Endpoint.COMPLETIONS)
    assert len(one.marks) == 3
    assert longer.marks == one.marks == other.marks
    assert one.tokens_at(2) == 2 * TOKEN_STRIDE
    assert longer.begins_with(one.whole, one.length)
    assert not other.begins_with(one.whole, one.length)


def test_text_matches_by_strides_and_knows_no_count() -> None:
    text = "a\u00e4" * TEXT_STRIDE
    one = history_of({"prompt": text}, Endpoint.COMPLETIONS)
    longer = history_of({"prompt": text + "more"}, Endpoint.COMPLETIONS)
    assert longer.marks[: len(one.marks)] == one.marks
    assert longer.begins_with(one.whole, one.length)
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
    assert read_history(parse_inference(Endpoint.COMPLETIONS, json.dumps(body).encode()), b"") is None
