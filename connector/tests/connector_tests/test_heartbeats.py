"""Until when decode may read a hand-off."""

from __future__ import annotations

from duplex_connector.heartbeats import Heartbeats


def beating(*moments: float) -> Heartbeats:
    beats = Heartbeats(20.0)
    for moment in moments:
        beats.sent("p", "a", moment)
    return beats


def test_without_a_heartbeat_the_grant_counts() -> None:
    assert beating().deadline("p", "a", 30.0) == 30.0


def test_heartbeats_in_time_extend() -> None:
    assert beating(5.0, 20.0, 35.0).deadline("p", "a", 30.0) == 55.0


def test_an_early_heartbeat_does_not_shorten() -> None:
    assert beating(5.0).deadline("p", "a", 30.0) == 30.0


def test_a_heartbeat_after_the_deadline_revives_nothing() -> None:
    assert beating(5.0, 31.0).deadline("p", "a", 30.0) == 30.0


def test_a_gap_breaks_the_chain_for_good() -> None:
    assert beating(25.0, 46.0, 47.0).deadline("p", "a", 30.0) == 45.0


def test_each_request_and_peer_has_its_own() -> None:
    beats = beating(20.0)
    beats.sent("q", "a", 25.0)
    assert [beats.deadline(*name, 30.0) for name in (("p", "a"), ("p", "b"), ("q", "a"))] == [40.0, 30.0, 45.0]


def test_what_is_read_is_forgotten() -> None:
    beats = beating(20.0)
    beats.sent("p", "b", 20.0)
    beats.keep_only({("p", "b")})
    assert beats.deadline("p", "a", 30.0) == 30.0
    assert beats.deadline("p", "b", 30.0) == 40.0
