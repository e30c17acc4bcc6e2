"""The keeper: renewals of what is in use, releases that arrive, and the budget."""

import pytest

from duplex_connector.contract import ConnectorKind
from duplex_router.fleet.document import Policy
from duplex_router.ledger.fates import Fate
from duplex_router.ledger.ledger import Entry, Ledger
from duplex_router.ledger.returns import Kind
from duplex_router.turn.legs import Failure

from .scripted import Stage
from .turns import FIRST, SECOND, held, released


@pytest.fixture
def stage() -> Stage:
    return Stage()


def renewed(stage: Stage) -> dict[str, float]:
    """Return the leases that the last messages gave, confirmed."""
    found: dict[str, float] = {}
    for params in stage.transport.leases():
        found.update(params["duplex"]["renew"])
    return found


def pass_time(stage: Stage, seconds: int, *, confirm: bool = True) -> list[float]:
    """Let seconds pass one by one; return when renewals were sent."""
    sent = []
    for _ in range(seconds):
        stage.clock.now += 1
        stage.core.keeper.tick()
        if stage.transport.calls and confirm and renewed(stage):
            sent.append(stage.clock.now)
    return sent


def test_a_lease_is_short_and_renewed_at_half_while_the_ttl_runs(stage: Stage) -> None:
    stage.set_policy(ttlSeconds=200)
    stage.whole_turn(FIRST, request="hold-1", expiry=500.0)
    (entry,) = stage.core.ledger
    begun = stage.clock.now
    assert entry.deadline == begun + 60
    assert pass_time(stage, 30) == []
    assert pass_time(stage, 1) == [begun + 31]
    assert entry.deadline == begun + 91
    assert entry.handle.expiry == 531.0
    pass_time(stage, 168)
    assert entry.deadline == begun + 200, "no lease goes beyond the ttl"
    pass_time(stage, 1)
    assert held(stage) == set()


def test_a_tick_looks_at_what_is_due_and_not_at_all_holds(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        stage.whole_turn([{"role": "user", "content": f"conversation {number}"}], request=f"hold-{number}")
    looked: list[Entry] = []
    lives_until = stage.core.keeper._lives_until

    def look(entry: Entry, policy: Policy, now: float) -> float:
        looked.append(entry)
        return lives_until(entry, policy, now)

    monkeypatch.setattr(stage.core.keeper, "_lives_until", look)
    monkeypatch.setattr(Ledger, "__iter__", lambda _: pytest.fail("a tick looks at every hold"))
    pass_time(stage, 300)
    looks_each = len(looked) / 50
    assert 8 <= looks_each <= 11, "one look for each half of a lease that has run"


def test_a_hold_in_use_is_renewed_beyond_its_ttl_and_up_to_the_longest_hold(stage: Stage) -> None:
    stage.set_policy(ttlSeconds=100, maxHoldSeconds=400)
    stage.whole_turn(FIRST, request="hold-1")
    (entry,) = stage.core.ledger
    stage.begin(SECOND)
    pass_time(stage, 300)
    assert held(stage) == {"hold-1"}
    pass_time(stage, 99)
    assert entry.deadline == entry.created + 400


def test_a_conversation_that_is_likely_to_return_is_held_beyond_its_ttl(stage: Stage) -> None:
    stage.set_policy(ttlSeconds=100, maxHoldSeconds=400)
    for _ in range(50):
        stage.core.ledger.returns.learn(b"t", Kind.FIRST, 150.0, stage.clock.now, returned=True)
    stage.whole_turn(FIRST, request="hold-1")
    pass_time(stage, 130)
    assert held(stage) == {"hold-1"}
    pass_time(stage, 271)
    assert held(stage) == set(), "gone when all others had long returned"


def test_a_conversation_that_nobody_expects_back_ends_with_its_ttl(stage: Stage) -> None:
    stage.set_policy(ttlSeconds=100, maxHoldSeconds=400)
    for _ in range(50):
        stage.core.ledger.returns.learn(b"t", Kind.FIRST, 300.0, stage.clock.now, returned=False)
    stage.whole_turn(FIRST, request="hold-1")
    pass_time(stage, 100)
    assert held(stage) == set()


def test_where_renewals_fail_the_handle_is_offered_no_more_before_its_lease_ends(stage: Stage) -> None:
    stage.whole_turn(FIRST, request="hold-1")
    for second in range(60):
        stage.clock.now += 1
        stage.core.keeper.tick()
        for call in [call for call in stage.transport.calls if call.is_lease]:
            stage.transport.calls.remove(call)
            call.fail(Failure.TIMEOUT)
        if second == 53:
            stage.begin(SECOND)
            assert stage.transport.take().params["remote_block_ids"] is None
    assert held(stage) == set()
    assert stage.core.counters.lease_messages["renew-failed"] > 0


def test_holds_of_one_engine_are_renewed_in_one_message() -> None:
    stage = Stage(decode=1)
    for number in range(5):
        stage.whole_turn([{"role": "user", "content": f"conversation {number}"}], request=f"hold-{number}")
    stage.clock.now += 31
    stage.core.keeper.tick()
    (call,) = stage.transport.calls
    assert call.params["duplex"]["renew"] == {f"hold-{number}": 60 for number in range(5)}


def test_holds_of_stock_engines_are_not_renewed() -> None:
    stage = Stage(ConnectorKind.STOCK)
    stage.set_policy(ttlSeconds=100)
    stage.whole_turn(FIRST, request="hold-1")
    (entry,) = stage.core.ledger
    assert entry.deadline == stage.clock.now + 100
    stage.begin(SECOND)
    stage.transport.take()
    for _ in range(100):
        stage.clock.now += 1
        stage.core.keeper.tick()
        assert stage.transport.calls == []
    assert held(stage) == set()


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
        stage.core.ledger.retire(entry, Fate.REPLACED)
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
        stage.core.ledger.retire(entry, Fate.REPLACED)
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
