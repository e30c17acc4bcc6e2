"""Turns whose revision loses its engines under them, as every rollout and every scale-down to nothing does."""

import pytest

from duplex_connector.contract import ConnectorKind
from duplex_router.turn.admission import QueueSettings
from duplex_router.turn.legs import Failure

from .scripted import Json, Stage
from .turns import FIRST, SECOND, error_of, held, released, reuse

OTHER: list[Json] = [{"role": "user", "content": "else"}]
REVISIONS = {
    name: {"prefill": [f"http://p{name}:1"], "decode": [f"http://d{name}:1"]} for name in ("r1", "r2")
}  # fmt: skip


def stand(stage: Stage, *revisions: str) -> None:
    """Have these revisions, of one engine of each role."""
    stage.revisions = {name: REVISIONS[name] for name in revisions}
    stage.set_policy()


@pytest.fixture
def stage() -> Stage:
    found = Stage()
    stand(found, "r1")
    return found


@pytest.mark.parametrize("kind", list(ConnectorKind))
def test_a_turn_that_prefill_has_begun_ends_on_a_decode_engine_that_is_to_go(kind: ConnectorKind) -> None:
    stage = Stage(kind)
    stand(stage, "r1", "r2")
    _, client = stage.begin(FIRST)
    prefill = stage.transport.take()
    stage.drain(f"d{prefill.engine.revision}:1")
    prefill.prefilled("hand-off")
    decode = stage.transport.take()
    assert (decode.engine.revision, decode.params["remote_request_id"]) == (prefill.engine.revision, "hand-off")
    decode.stream()
    assert client.ended
    _, client = stage.begin(OTHER)
    assert stage.transport.take().engine.revision != prefill.engine.revision, "new turns go elsewhere"


def test_a_turn_whose_revision_is_gone_begins_anew_on_another(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    prefill = stage.transport.take()
    stand(stage, "r2")
    prefill.prefilled("hand-off")
    again = stage.transport.take()
    assert again.engine.key == "pr2:1"
    again.prefilled("another")
    decode = stage.transport.take()
    assert (decode.engine.key, decode.params["remote_request_id"]) == ("dr2:1", "another")
    decode.stream()
    assert (client.ended, client.status) == (True, 200)
    assert stage.core.counters.retries == {"revision": 1}
    assert stage.core.counters.in_flight == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_turn_whose_last_engine_of_a_role_is_not_there_begins_anew_on_another(stage: Stage, role: str) -> None:
    _, client = stage.begin(FIRST)
    stand(stage, "r1", "r2")
    if role == "decode":
        stage.transport.take().prefilled("hand-off")
    stage.transport.take().fail(Failure.UNREACHABLE)
    again = stage.transport.take()
    assert again.engine.key == "pr2:1"
    again.prefilled()
    stage.transport.take().stream()
    assert client.ended
    assert released(stage) == (["hand-off"] if role == "decode" else [])


def test_it_goes_to_another_revision_once(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    stand(stage, "r1", "r2")
    for _ in range(2):
        stage.transport.take().fail(Failure.UNREACHABLE)
    assert stage.transport.calls == []
    assert client.status == 502


def test_without_another_revision_it_is_told_what_is_missing(stage: Stage) -> None:
    _, client = stage.begin(FIRST)
    prefill = stage.transport.take()
    stage.revisions = {"r1": {"prefill": ["http://pr1:1"], "decode": []}}
    stage.set_policy()
    prefill.prefilled("hand-off")
    assert client.status == 503
    assert error_of(client) == "No decode engine is ready."


def test_a_client_that_has_left_is_not_moved(stage: Stage) -> None:
    turn, client = stage.begin(FIRST)
    stage.transport.take().prefilled()
    decode = stage.transport.take()
    stand(stage, "r1", "r2")
    turn.client_gone()
    decode.fail(Failure.UNREACHABLE)
    assert released(stage) == ["p"]
    assert stage.transport.calls == []
    assert client.status == 0


def test_kv_of_the_revision_left_is_offered_to_no_other(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stand(stage, "r1", "r2")
    _, client = stage.begin(SECOND)
    offered = stage.transport.take()
    assert (offered.engine.key, offered.params["remote_request_id"]) == ("pr1:1", "hold-1")
    offered.fail(Failure.UNREACHABLE)
    again = stage.transport.take()
    assert again.engine.key == "pr2:1"
    assert not again.params.get("remote_request_id")
    again.prefilled()
    stage.transport.take().stream(request="hold-2")
    assert client.ended
    assert reuse(client).startswith(b"rejected")
    assert "hold-2" in held(stage)


@pytest.mark.parametrize("kind", list(ConnectorKind))
def test_a_turn_that_waits_moves_without_its_handle(kind: ConnectorKind) -> None:
    """A stock engine's, which no other turn can use any more, is released; a guarded one's hold stays."""
    stage = Stage(kind, queue=QueueSettings(engine_turns=1))
    stand(stage, "r1")
    stage.core.templates.learn("r1", tools=False, slack=0)
    stage.begin(FIRST)
    stage.transport.take().prefilled(prompt_tokens=64)
    stage.transport.take().stream(request="hold-1", tokens=80)
    stage.begin(OTHER)
    running = stage.transport.take()
    _, client = stage.begin(SECOND)
    assert stage.transport.calls == [], "it waits"
    stand(stage, "r1", "r2")
    stage.drain("dr1:1")
    stage.core.admission.tick()
    moved = stage.transport.take()
    assert moved.engine.key == "pr2:1"
    assert not moved.params.get("remote_request_id")
    assert released(stage) == (["hold-1"] if kind is ConnectorKind.STOCK else [])
    running.prefilled()
    assert stage.transport.take().engine.key == "dr1:1"
    moved.prefilled()
    stage.transport.take().stream(request="hold-2")
    assert reuse(client) == b"rejected;reason=revision"


def test_who_waits_where_nothing_else_stands_waits_on() -> None:
    stage = Stage(queue=QueueSettings(engine_turns=1))
    stand(stage, "r1")
    stage.begin(FIRST)
    stage.transport.take()
    _, client = stage.begin(OTHER)
    stage.drain("dr1:1")
    stage.core.admission.tick()
    assert (client.status, stage.core.admission.waiting) == (0, 1)
