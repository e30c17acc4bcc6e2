"""Until when decode may read a hand-off."""

from __future__ import annotations

from duplex_connector.heartbeats import Heartbeats


def test_without_a_heartbeat_the_grant_counts() -> None:
    assert Heartbeats(20.0).deadline("p", "a", 30.0) == 30.0


def test_heartbeats_in_time_extend() -> None:
    beats = Heartbeats(20.0)
    for moment in (5.0, 20.0, 35.0):
        beats.sent("p", ["a"], moment)
    assert beats.deadline("p", "a", 30.0) == 55.0


def test_an_early_heartbeat_does_not_shorten() -> None:
    beats = Heartbeats(20.0)
    beats.sent("p", ["a"], 5.0)
    assert beats.deadline("p", "a", 30.0) == 30.0


def test_a_heartbeat_after_the_deadline_revives_nothing() -> None:
    beats = Heartbeats(20.0)
    beats.sent("p", ["a"], 5.0)
    beats.sent("p", ["a"], 31.0)
    assert beats.deadline("p", "a", 30.0) == 30.0


def test_a_gap_breaks_the_chain_for_good() -> None:
    beats = Heartbeats(20.0)
    for moment in (25.0, 46.0, 47.0):
        beats.sent("p", ["a"], moment)
    assert beats.deadline("p", "a", 30.0) == 45.0


def test_each_request_and_peer_has_its_own() -> None:
    beats = Heartbeats(20.0)
    beats.sent("p", ["a", "b"], 20.0)
    beats.sent("q", ["a"], 25.0)
    assert [beats.deadline("p", "b", 30.0), beats.deadline("q", "a", 30.0)] == [40.0, 45.0]


def test_what_is_read_is_forgotten() -> None:
    beats = Heartbeats(20.0)
    beats.sent("p", ["a", "b"], 20.0)
    beats.sent("p", ["b"], 25.0)
    assert beats.deadline("p", "a", 30.0) == 30.0
    beats.keep_only(["q"])
    assert beats.deadline("p", "b", 30.0) == 30.0
