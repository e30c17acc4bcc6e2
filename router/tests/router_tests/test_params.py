"""kv_transfer_params: every key that is not ours to change goes on as it came."""

import json
from typing import Any

import pytest

from duplex_router.wire.errors import WireError
from duplex_router.wire.events import EventObserver
from duplex_router.wire.params import MISS, decode_alone, lease_body, read_handle, renewals
from duplex_router.wire.prefill import _parse_prefill_answer, hand_off_to_decode, read_prefill_answer
from duplex_router.wire.reply import Observer

from .handles import handle_fields


def test_the_miss_is_vllms_skeleton() -> None:
    assert json.loads(MISS) == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
@pytest.mark.parametrize("more", [{}, {"unknown_key": {"x": [1]}}])
def test_an_offer_is_the_handle_with_threshold_and_keep(more: dict[str, Any], separators: tuple[str, str]) -> None:
    fields = handle_fields(tokens=40, **more)
    offered = json.loads(
        read_handle(json.dumps(fields, separators=separators).encode()).offer(64), object_pairs_hook=unrepeated
    )
    assert offered.pop("duplex") == {**fields["duplex"], "threshold": 64, "keep": True}
    fields.pop("duplex")
    assert offered == fields


def test_a_moved_expiry_is_offered() -> None:
    handle = read_handle(json.dumps(handle_fields(expiry=100.25)).encode())
    assert handle.expiry is not None
    handle.expiry += 10.5
    assert json.loads(handle.offer(0))["remote_blocks_expiry_time"] == 110.75


def test_a_handle_without_expiry_gets_none() -> None:
    fields = handle_fields()
    del fields["remote_blocks_expiry_time"]
    assert "remote_blocks_expiry_time" not in json.loads(read_handle(json.dumps(fields).encode()).offer(0))


def test_the_boot_is_the_engine_without_its_rank() -> None:
    assert read_handle(json.dumps(handle_fields(engine="e_dp3")).encode()).boot == "e"


@pytest.mark.parametrize("missing", ["remote_request_id", "remote_engine_id", "remote_block_ids", "remote_num_tokens"])
def test_a_handle_needs_what_every_pull_needs(missing: str) -> None:
    fields = handle_fields()
    del fields[missing]
    with pytest.raises(WireError):
        read_handle(json.dumps(fields).encode())


NO_TEXT = b'"\xc2,\x80"'
"""A name as it may stand in JSON's place for one, of bytes that are no UTF-8."""


def named(fields: dict[str, Any], where: str) -> bytes:
    """Return fields as JSON with that name put in at the top, in their `duplex` object, or deeper."""
    fields = {**fields, "duplex": {"step": 64}, "x": {"y": 1}}
    raw = json.dumps(fields, separators=(",", ":")).encode()
    before = {"top": b"{", "own": b'"duplex":{', "deep": b'"x":{'}[where]
    return raw.replace(before, before + NO_TEXT + b":1,", 1)


@pytest.mark.parametrize("where", ["top", "own", "deep"])
def test_a_handle_that_could_not_be_split_later_is_refused_when_it_is_read(where: str) -> None:
    raw = named(handle_fields(), where)
    with pytest.raises(WireError):
        read_handle(raw)
    data = b'{"choices":[],"kv_transfer_params":%b}' % raw
    for observer in (EventObserver(), Observer()):
        shown = observer.see(data, 0, len(data))
        assert (shown, observer.held, observer.handle) == (b'{"choices":[],"kv_transfer_params":null}', None, raw)


@pytest.mark.parametrize("where", ["top", "own", "deep"])
def test_a_hand_off_that_could_not_be_split_later_is_refused_when_it_is_read(where: str) -> None:
    body = b'{"choices":[{"finish_reason":"stop"}],"kv_transfer_params":%b}' % named(handle_fields(), where)
    for read in (read_prefill_answer, _parse_prefill_answer):
        with pytest.raises(WireError):
            read(body)


def test_trimming_cuts_count_and_blocks_together() -> None:
    fields = handle_fields(tokens=40, blocks=[[5, 6, 7]])
    trimmed = json.loads(read_handle(json.dumps(fields).encode()).trimmed(32, 16) or b"")
    assert trimmed == {**fields, "remote_num_tokens": 32, "remote_block_ids": [[5, 6]]}


@pytest.mark.parametrize(
    ("blocks", "tokens"),
    [([[1, 2]], 32), ([[1, 2, 3], [1]], 32), ([], 32), ([[1, 2, 3]], 0), ([[1, 2, 3]], 48)],
)
def test_what_cannot_be_named_in_part_is_not_trimmed(blocks: list[list[int]], tokens: int) -> None:
    handle = read_handle(json.dumps(handle_fields(tokens=40, blocks=blocks)).encode())
    assert handle.trimmed(tokens, 16) is None


def test_a_release_asks_for_a_remote_prefill() -> None:
    released = json.loads(read_handle(json.dumps(handle_fields()).encode()).release())
    assert (released["do_remote_prefill"], released["do_remote_decode"]) == (True, False)
    assert released["remote_request_id"] == handle_fields()["remote_request_id"]


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
@pytest.mark.parametrize(
    "params",
    [
        {"remote_request_id": "p", "duplex": {"marks": [], "pulled": 5}},
        {"remote_request_id": "p", "duplex": {"marks": [], "pulled": 5}, "a": {"b": 1}},
        {"remote_request_id": "p", "duplex": {"pulled": 5, "more": {"duplex": {"a": 1}}}},
        {"remote_request_id": "p", "duplex": {"pulled": 5, "ttl": 7, "keep": False}},
        {"remote_request_id": "p", "duplex": {}},
        {"remote_request_id": "p", "duplex": None, "a": 1},
        {"duplex": {"pulled": 5}},
    ],
)
def test_the_ttl_joins_what_prefill_said_wherever_it_is(params: dict[str, Any], separators: tuple[str, str]) -> None:
    found = read_prefill_answer(answer(separators, kv_transfer_params=params))
    sent = json.loads(hand_off_to_decode(found, 480, with_token_ids=True), object_pairs_hook=unrepeated)
    assert sent == {**params, "duplex": {**(params["duplex"] or {}), "ttl": 480}}
    assert (found.report.pulled if found.report is not None else 0) == (params["duplex"] or {}).get("pulled", 0)


def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    assert len(fields) == len(pairs)
    return fields


@pytest.mark.parametrize("ids", [{}, {"prompt_token_ids": [9]}])
def test_prefills_token_ids_join_the_hand_off_and_replace_what_is_there(ids: dict[str, Any]) -> None:
    params = {"a": 1, **ids, "duplex": {"b": 2}}
    found = read_prefill_answer(answer(kv_transfer_params=params, prompt_token_ids=[1, 2]))
    sent = json.loads(hand_off_to_decode(found, 5, with_token_ids=True), object_pairs_hook=unrepeated)
    assert (sent["a"], sent["prompt_token_ids"], sent["duplex"]["ttl"]) == (1, [1, 2], 5)
    assert json.loads(hand_off_to_decode(found, 5, with_token_ids=False)).get("prompt_token_ids") != [1, 2]


def test_params_that_do_not_stand_at_the_end_are_read_as_well() -> None:
    nested = {"choices": [{"kv_transfer_params": {"a": 1}}], "usage": {"prompt_tokens": 3, "more": {"b": 1}}}
    body = json.dumps(nested, separators=(",", ":")).encode()
    assert (read_prefill_answer(body).hand_off, read_prefill_answer(body).prompt_tokens) == (None, 3)
    body = json.dumps({"kv_transfer_params": {"a": 1}, **nested}, separators=(",", ":")).encode()
    assert read_prefill_answer(body).hand_off == b'{"a":1}'


def test_decode_alone_is_asked_to_hold() -> None:
    assert json.loads(decode_alone(0)) == {
        "do_remote_prefill": False,
        "do_remote_decode": False,
        "duplex": {"ttl": 0},
    }


def test_a_lease_message_names_a_model_that_nobody_serves() -> None:
    body = json.loads(lease_body(renewals({"a": 60, "b": 0})))
    assert body["model"] == "duplex-lease"
    assert body["kv_transfer_params"] == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "duplex": {"renew": {"a": 60, "b": 0}},
    }


def answer(separators: tuple[str, str] = (",", ":"), **more: Any) -> bytes:
    body = {"choices": [{"finish_reason": "length"}], "usage": {"prompt_tokens": 9}, "kv_transfer_params": None, **more}
    return json.dumps(body, separators=separators).encode()


def test_a_prefill_answer() -> None:
    report = {"outcome": "partial", "reason": "diverged", "proved": 64, "pulled": 48, "local": 16, "computed": 9}
    params = {"remote_prefill_cached_tokens": 64, "duplex": {**report, "marks": ["x"]}}
    found = read_prefill_answer(answer(kv_transfer_params=params))
    assert found.report is not None
    assert (found.report.outcome, found.report.pulled, found.report.computed) == ("partial", 48, 9)
    assert (found.prompt_tokens, found.cached_tokens, found.failed) == (9, 64, False)
    assert json.loads(found.hand_off or b"") == params


def test_a_prefill_answer_may_hand_nothing_off() -> None:
    assert read_prefill_answer(answer()).hand_off is None


@pytest.mark.parametrize("choices", [[{"finish_reason": "error"}], []])
def test_a_200_can_be_a_failure(choices: list[Any]) -> None:
    assert read_prefill_answer(answer(choices=choices)).failed


@pytest.mark.parametrize("body", [b"", b"[]", b'{"choices":1}'])
def test_what_is_no_prefill_answer_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        read_prefill_answer(body)
