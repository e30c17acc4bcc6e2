"""The keeper: renewals of what is in use, releases that arrive, and the budget."""

import pytest

from duplex_router.turn.legs import Failure

from .scripted import Stage
from .turns import FIRST, SECOND, held, released


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_hold_in_use_is_renewed_and_its_expiry_moved(stage: Stage) -> None:
    stage.set_policy(ttlSeconds=100)
    stage.whole_turn(FIRST, request="hold-1", expiry=500.0)
    stage.begin(SECOND)
    stage.clock.now += 40
    stage.core.keeper.tick()
    assert stage.transport.leases() == []
    stage.clock.now += 20
    stage.core.keeper.tick()
    assert stage.transport.leases()[0]["duplex"]["renew"] == {"hold-1": 100}
    (entry,) = stage.core.ledger
    assert entry.deadline == stage.clock.now + 100
    assert entry.handle.expiry == 560.0


def test_a_hold_that_nobody_uses_is_not_renewed_and_lapses(stage: Stage) -> None:
    stage.set_policy(ttlSeconds=100)
    stage.whole_turn(FIRST, request="hold-1")
    stage.clock.now += 60
    stage.core.keeper.tick()
    assert stage.transport.calls == []
    stage.clock.now += 40
    stage.core.keeper.tick()
    assert held(stage) == set()


def test_renewals_end_at_the_longest_hold(stage: Stage) -> None:
    stage.set_policy(ttlSeconds=100, maxHoldSeconds=150)
    stage.whole_turn(FIRST, request="hold-1")
    stage.begin(SECOND)
    stage.clock.now += 51
    stage.core.keeper.tick()
    assert stage.transport.leases() == []


def test_a_release_that_is_lost_is_sent_again_a_bounded_number_of_times(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    stage.whole_turn(FIRST, "Ho.", request="hold-2")
    tries = 0
    while stage.transport.calls:
        stage.transport.calls.pop().fail(Failure.TIMEOUT)
        tries += 1
        stage.core.keeper.tick()
    assert tries == 3
    assert stage.core.keeper.outstanding == 0
    assert stage.core.counters.lease_messages["release-failed"] == 1


def test_releases_that_come_up_while_one_is_under_way_share_the_next_message() -> None:
    stage = Stage(decode=1)
    for number in range(4):
        stage.whole_turn([{"role": "user", "content": f"conversation {number}"}], request=f"hold-{number}")
    for entry in list(stage.core.ledger):
        stage.core.ledger.retire(entry)
        stage.core.keeper.flush()
    (first,) = stage.transport.calls
    assert first.params["duplex"]["renew"] == {"hold-0": 0}
    first.answer({"error": {}}, 404)
    second = stage.transport.calls[-1]
    assert second.params["duplex"]["renew"] == {"hold-1": 0, "hold-2": 0, "hold-3": 0}
    assert stage.core.keeper.outstanding == 1
    second.answer({"error": {}}, 404)
    assert stage.core.keeper.outstanding == 0


def test_a_release_that_is_lost_does_not_hold_the_next_one_back() -> None:
    stage = Stage(decode=1)
    for number in range(2):
        stage.whole_turn([{"role": "user", "content": f"conversation {number}"}], request=f"hold-{number}")
    for entry in list(stage.core.ledger):
        stage.core.ledger.retire(entry)
        stage.core.keeper.flush()
    stage.transport.calls[0].fail(Failure.TIMEOUT)
    assert stage.transport.calls[-1].params["duplex"]["renew"] == {"hold-1": 0}


def test_over_the_budget_the_oldest_hold_goes() -> None:
    stage = Stage(decode=1)
    for engine in stage.fleet.engines.values():
        engine.kv_tokens = 200
    stage.set_policy(retentionPercent=50)
    for number in range(3):
        message = {"role": "user", "content": f"conversation {number}"}
        stage.whole_turn([message], request=f"hold-{number}", tokens=50)
    assert held(stage) == {"hold-1", "hold-2"}
    assert released(stage) == ["hold-0"]


def test_the_end_releases_all_in_one_message_an_engine(stage: Stage) -> None:
    for number in range(3):
        stage.whole_turn([{"role": "user", "content": f"conversation {number}"}], request=f"hold-{number}")
    stage.core.ledger.retire_all()
    stage.core.keeper.flush()
    (call,) = stage.transport.calls
    assert call.params["duplex"]["renew"] == {"hold-0": 0, "hold-1": 0, "hold-2": 0}
