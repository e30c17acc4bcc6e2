"""Holds: leases and heartbeats, notifications, renewals, and how each ending is counted."""

from __future__ import annotations

import pytest

from duplex_connector.contract import KEEP_PREFIX
from duplex_simulator.holds import Hold, Holds


def _holds(*, guarded: bool = True) -> tuple[Holds, list[list[list[int]]]]:
    freed: list[list[list[int]]] = []
    holds = Holds(freed.append, lease=30, guarded=guarded)
    holds.add(Hold("hand-off", [[1]], 16, deadline=130.0, turn=False))
    holds.add(Hold("turn", [[2]], 16, deadline=160.0, turn=True))
    return holds, freed


def test_a_completed_read_frees_the_blocks() -> None:
    holds, freed = _holds()
    holds.notified("turn:1", 100)
    assert freed == [[[2]]]
    assert holds.counts.consumed == 1
    holds.notified("turn:1", 100)
    assert holds.counts.late == 1


def test_a_kept_read_frees_nothing_on_a_guarded_holder() -> None:
    holds, freed = _holds()
    holds.notified(f"{KEEP_PREFIX}turn:1", 100)
    assert (freed, holds.counts.kept, holds.counts.late) == ([], 1, 0)
    stock, freed = _holds(guarded=False)
    stock.notified(f"{KEEP_PREFIX}turn:1", 100)
    assert (freed, stock.counts.late) == ([], 1)


def test_heartbeats_extend_to_two_thirds_of_the_lease_from_now() -> None:
    holds, _ = _holds()
    holds.notified("HB:hand-off,unknown", 105)
    hand_off, turn = holds.all()
    assert (hand_off.deadline, turn.deadline) == (130.0, 160.0)
    holds.notified("HB:hand-off", 125)
    assert (hand_off.deadline, turn.deadline) == (145.0, 160.0)


def test_nothing_ends_a_hold_that_the_worker_was_not_told_of() -> None:
    holds, freed = _holds(guarded=False)
    holds.add(Hold("alone", [[3]], 16, deadline=110.0, turn=True, tracked=False))
    holds.notified("alone:1", 100)
    holds.reap(1000)
    assert [hold.request_id for hold in holds.all()] == ["alone"]
    assert [[3]] not in freed
    assert holds.counts.late == 1


@pytest.mark.parametrize(("now", "left"), [(129.9, 2), (130.0, 1), (160.0, 0)])
def test_holds_lapse_at_their_deadline(now: float, left: int) -> None:
    holds, freed = _holds()
    holds.reap(now)
    assert len(holds) == left
    assert len(freed) == 2 - left
    assert holds.counts.expired == 2 - left
    assert holds.counts.lapses == (1 if left == 0 else 0)


def test_renewal_moves_the_deadline_and_zero_releases() -> None:
    holds, freed = _holds()
    holds.renew("turn", 100, 150)
    holds.renew("nobody", 100, 150)
    holds.reap(200)
    assert [hold.request_id for hold in holds.all()] == ["turn"]
    holds.renew("turn", 0, 210)
    assert freed == [[[1]], [[2]]]
    assert (holds.counts.renewals, holds.counts.releases, holds.counts.lapses) == (1, 1, 0)
