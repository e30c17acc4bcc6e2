"""What a turn leaves on engines in its less usual ends: a hand-off that nobody read, no hold at all."""

import pytest

from duplex_connector.contract import ConnectorKind

from .scripted import Stage
from .turns import FIRST, SECOND, released


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({"error": {"message": "max_tokens is too large", "type": "BadRequestError", "code": 400}}, []),
        ({"error": {"message": "1 validation error", "type": "Bad Request", "code": 400}}, ["hand-off"]),
        ({"error": "Unauthorized"}, ["hand-off"]),
        ({}, ["hand-off"]),
    ],
)
def test_a_hand_off_that_a_refusal_did_not_free_is_released(
    stage: Stage, body: dict[str, object], left: list[str]
) -> None:
    _, client = stage.begin(FIRST)
    stage.transport.take().prefilled("hand-off")
    stage.transport.take().answer(body, 400)
    assert client.status == 400
    assert released(stage) == left


@pytest.mark.parametrize(("kind", "lost"), [(ConnectorKind.GUARDED, "new"), (ConnectorKind.STOCK, "both")])
def test_a_turn_that_leaves_no_hold_is_counted_and_whether_it_used_the_former_one_up(
    kind: ConnectorKind, lost: str
) -> None:
    stage = Stage(kind)
    stage.core.templates.learn("r1", tools=False, slack=0)
    stage.begin(FIRST)
    stage.transport.take().prefilled(prompt_tokens=80)
    stage.transport.take().stream(request="hold-1", tokens=100)
    assert stage.core.counters.unheld == {}
    stage.begin(SECOND, stop=["END"])
    call = stage.transport.take()
    assert call.params["remote_request_id"] == "hold-1"
    if kind is ConnectorKind.GUARDED:
        call.prefilled(outcome="full", pulled=80)
    else:
        usage = {"prompt_tokens": 120}
        params = {"remote_request_id": "p", "do_remote_prefill": True, "remote_prefill_cached_tokens": 64}
        call.answer({"choices": [{"finish_reason": "length"}], "usage": usage, "kv_transfer_params": params})
    decode = stage.transport.take()
    decode.start_stream()
    decode.say("Ho")
    decode.end()
    assert stage.core.counters.unheld == {lost: 1}
