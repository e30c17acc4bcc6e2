"""What of a request's kv_transfer_params reaches vLLM."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from duplex_connector.contract import KEEP_PREFIX, Duplex, Params
from duplex_connector.handle import (
    instructions,
    is_addressed,
    is_kept,
    names_blocks,
    prepared,
    pulling,
    telling_only,
    without_peer,
)
from duplex_connector.proof import Decision, Outcome, Reason

ADDRESSED: dict[str, Any] = {
    Params.DO_REMOTE_PREFILL: False,
    Params.DO_REMOTE_DECODE: True,
    Params.BLOCK_IDS: [[4, 9, 12]],
    Params.ENGINE_ID: "engine",
    Params.REQUEST_ID: "cmpl-1",
    Params.HOST: "10.0.0.1",
    Params.PORT: 5600,
    Params.TP_SIZE: 1,
    Params.NUM_TOKENS: 90,
    Params.EXPIRY_TIME: 12.5,
    "transfer_mode": "pull",
}
COLD = {
    Params.DO_REMOTE_DECODE: True,
    Params.DO_REMOTE_PREFILL: False,
    Params.ENGINE_ID: None,
    Params.BLOCK_IDS: None,
    Params.HOST: None,
    Params.PORT: None,
}


def test_a_good_handle_is_addressed() -> None:
    assert names_blocks(ADDRESSED)
    assert is_addressed(ADDRESSED)


def test_a_cold_skeleton_names_no_blocks() -> None:
    assert not names_blocks(COLD)


WRONG: list[tuple[str, Any]] = [
    (Params.ENGINE_ID, ["engine"]),
    (Params.ENGINE_ID, ""),
    (Params.REQUEST_ID, 7),
    (Params.HOST, None),
    (Params.PORT, "5600"),
    (Params.PORT, 0),
    (Params.PORT, 70_000),
    (Params.PORT, True),
    (Params.TP_SIZE, "1"),
    (Params.TP_SIZE, 0),
    (Params.DCP_SIZE, None),
    (Params.PP_SIZE, 1.0),
    (Params.EXPIRY_TIME, "soon"),
    (Params.EXPIRY_TIME, math.nan),
    (Params.EXPIRY_TIME, math.inf),
    (Params.EXPIRY_TIME, True),
    (Params.REGISTRATION_GENERATION, None),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_field_of_a_wrong_kind_is_not_addressed(key: str, value: object) -> None:
    assert not is_addressed({**ADDRESSED, key: value})


@pytest.mark.parametrize("key", [Params.ENGINE_ID, Params.REQUEST_ID, Params.HOST, Params.PORT])
def test_a_missing_field_is_not_addressed(key: str) -> None:
    assert not is_addressed({name: value for name, value in ADDRESSED.items() if name != key})


def test_older_releases_fields_may_be_absent() -> None:
    assert is_addressed({key: value for key, value in ADDRESSED.items() if key != Params.TP_SIZE})


def test_without_peer_leaves_nothing_of_the_peer() -> None:
    left = without_peer({**ADDRESSED, Params.DUPLEX: {Duplex.KEEP: True}, "prompt_token_ids": [1]})
    assert left == {
        Params.DO_REMOTE_PREFILL: False,
        Params.DO_REMOTE_DECODE: True,
        Params.TP_SIZE: 1,
        "transfer_mode": "pull",
        "prompt_token_ids": [1],
    }


def test_telling_only_reads_no_block_and_has_a_list_for_every_group() -> None:
    params = telling_only(ADDRESSED, 2)
    assert params[Params.BLOCK_IDS] == [[], []]
    assert params[Params.NUM_TOKENS] == 0
    assert params[Params.REQUEST_ID] == "cmpl-1"


def test_pulling_names_what_was_decided_and_leaves_the_rest() -> None:
    decision = Decision(Outcome.PARTIAL, proved=70, tokens=64, block_ids=[[4, 9]])
    params = pulling({**ADDRESSED, Params.DUPLEX: {}}, decision, keep=False)
    assert params == {**ADDRESSED, Params.BLOCK_IDS: [[4, 9]], Params.NUM_TOKENS: 64}


def test_a_kept_pull_is_known_by_its_notification() -> None:
    decision = Decision(Outcome.FULL, proved=90, tokens=90, block_ids=[[4, 9, 12]])
    kept = pulling(ADDRESSED, decision, keep=True)[Params.REQUEST_ID]
    assert kept == f"{KEEP_PREFIX}cmpl-1"
    assert is_kept(f"{kept}:1".encode())
    assert not is_kept(b"cmpl-1:1")
    assert not is_kept(b"HB:cmpl-1")


def test_instructions_are_read() -> None:
    wishes = instructions({Params.DUPLEX: {Duplex.TTL: 12, Duplex.THRESHOLD: 64, Duplex.KEEP: True}})
    assert (wishes.ttl, wishes.threshold, wishes.keep, wishes.renew) == (12.0, 64, True, None)


@pytest.mark.parametrize("own", [None, [], "text", {Duplex.TTL: "12"}, {Duplex.TTL: True}, {Duplex.TTL: -1}])
def test_wrong_instructions_count_as_absent(own: object) -> None:
    assert instructions({Params.DUPLEX: own}).ttl is None


@pytest.mark.parametrize("own", [{Duplex.THRESHOLD: "8"}, {Duplex.THRESHOLD: -8}, {Duplex.THRESHOLD: True}])
def test_a_wrong_threshold_counts_as_absent(own: object) -> None:
    assert instructions({Params.DUPLEX: own}).threshold is None


def test_only_true_keeps() -> None:
    assert not instructions({Params.DUPLEX: {Duplex.KEEP: "yes"}}).keep


def test_no_time_to_live_is_for_ever() -> None:
    assert instructions({Params.DUPLEX: {Duplex.TTL: 1e300}}).ttl == 7 * 24 * 3600


def test_a_lease_message_keeps_its_good_entries() -> None:
    wishes = instructions({Params.DUPLEX: {Duplex.RENEW: {"a": 30, "b": "x", "c": 0}}})
    assert wishes.renew == {"a": 30.0, "c": 0.0}
    assert instructions({Params.DUPLEX: {Duplex.RENEW: [1]}}).renew is None


def test_what_reaches_vllm_is_still_json() -> None:
    decision = Decision(Outcome.FULL, proved=90, tokens=90, block_ids=[[4, 9, 12]])
    for params in (without_peer(ADDRESSED), telling_only(ADDRESSED, 1), pulling(ADDRESSED, decision, keep=True)):
        assert json.loads(json.dumps(params)) == params


NOTHING = Decision(Outcome.NONE, Reason.DIVERGED)


def test_what_is_not_pulled_is_told_unless_it_is_kept() -> None:
    assert prepared(ADDRESSED, NOTHING, keep=False, groups=2) == telling_only(ADDRESSED, 2)
    assert prepared(ADDRESSED, NOTHING, keep=True, groups=2) == without_peer(ADDRESSED)


def test_an_engine_that_cannot_pull_tells_nobody() -> None:
    disabled = Decision(Outcome.NONE, Reason.DISABLED)
    assert prepared(ADDRESSED, disabled, keep=False, groups=1) == without_peer(ADDRESSED)


def test_what_is_proved_is_pulled() -> None:
    decision = Decision(Outcome.FULL, proved=90, tokens=90, block_ids=[[4, 9, 12]])
    assert prepared(ADDRESSED, decision, keep=True, groups=1) == pulling(ADDRESSED, decision, keep=True)
