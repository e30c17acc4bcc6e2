"""Which engine is restarted when engines cannot reach each other: one side, when it lasts, and rarely."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duplex_connector.contract import Capability, capability
from duplex_operator.plan import Observed, Pod, RouterStats, plan
from duplex_operator.plan.healing import Healing, heal
from duplex_operator.plan.observed import BrokenPair

from .build import router_pod, serving_well, wanted

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LONG_AGO = NOW.timestamp() - 600

RECOVERS, FORGETS_NOTHING = capability("0.33.0"), capability("0.31.0")


def engine(name: str, **changes: Any) -> Pod:
    role = "prefill" if name.startswith("p") else "decode"
    values: dict[str, Any] = {
        "ip": "",
        "ready": True,
        "terminating": False,
        "trouble": None,
        "uid": f"uid-{name}",
        "started": "2026-01-01T00:00:00Z",
    }
    return Pod(name, role, "r", **(values | changes))


def observed(*pairs: tuple[str, str], pods: tuple[Pod, ...] | None = None, since: float = LONG_AGO) -> Observed:
    pods = pods or tuple(engine(name) for name in ("p1", "p2", "d1", "d2"))
    broken = tuple(BrokenPair(prefill, decode, since) for prefill, decode in pairs)
    return Observed(pods=pods, stats={"router-0": RouterStats(broken=broken)})


def restarted(of: Observed, row: Capability | None = RECOVERS, now: datetime = NOW) -> str:
    found = heal(row, of, now).restart
    return found.pod if found else ""


def test_nothing_is_restarted_while_all_reach_each_other() -> None:
    assert heal(RECOVERS, observed(), NOW) == Healing((), None, None)


def test_of_a_broken_pair_prefill_goes_which_holds_no_conversation() -> None:
    found = heal(RECOVERS, observed(("p1", "d2")), NOW)
    assert found.restart is not None
    assert (found.restart.pod, found.restart.uid) == ("p1", "uid-p1")
    assert "p1 and decode d2" in found.restart.why


def test_the_engine_that_the_broken_pairs_have_in_common_goes() -> None:
    assert restarted(observed(("p1", "d2"), ("p2", "d2"))) == "d2"
    assert restarted(observed(("p2", "d1"), ("p2", "d2"))) == "p2"


def test_a_short_cut_is_left_to_mend_by_itself() -> None:
    assert restarted(observed(("p1", "d1"), since=NOW.timestamp() - 59)) == ""
    assert restarted(observed(("p1", "d1"), since=NOW.timestamp() - 60)) == "p1"


def test_engines_that_are_gone_or_going_are_no_pair() -> None:
    assert heal(RECOVERS, observed(("p1", "gone")), NOW).stale == ()
    leaving = (engine("p1", terminating=True), engine("p2"), engine("d1"))
    assert heal(RECOVERS, observed(("p1", "d1"), pods=leaving), NOW).stale == ()


def test_the_last_engine_of_a_role_stays_while_another_of_the_pair_can_go() -> None:
    pods = (engine("p1"), engine("d1"), engine("d2"))
    assert restarted(observed(("p1", "d2"), pods=pods)) == "d2", "p1 and d1 go on serving"
    assert restarted(observed(("p1", "d1"), ("p1", "d2"), pods=pods)) == "p1", "nothing serves as it is"
    other = replace(engine("p2"), revision="other")
    assert restarted(observed(("p1", "d2"), pods=(*pods, other))) == "d2", "what never pairs is no replacement"


@pytest.mark.parametrize(
    "missing", [{"ready": False}, {"terminating": True}, {"draining_since": "2026-01-01T11:00:00Z"}]
)
def test_no_engine_is_restarted_while_another_of_its_role_is_missing(missing: dict[str, Any]) -> None:
    pods = (engine("p1"), engine("p2", **missing), engine("d1"))
    found = heal(RECOVERS, observed(("p1", "d1"), pods=pods), NOW)
    assert found.stale
    assert found.restart is None


def test_restarts_are_rare_and_rarer_with_each_that_did_not_help() -> None:
    of, now, times = observed(("p1", "d1")), NOW, []
    for _ in range(6 * 3600 // 30):
        found = heal(RECOVERS, of, now)
        if found.restart is not None:
            times.append((now - NOW).total_seconds())
        if found.status is not None:
            of = replace(of, status={"healing": found.status.model_dump(by_alias=True)})
        now += timedelta(seconds=30)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[:5] == [300, 600, 1200, 2400, 3600]
    assert set(gaps[5:]) <= {3600}


def test_after_a_long_calm_the_next_restart_counts_as_the_first() -> None:
    before = {"restarts": 5, "lastRestartTime": "2026-01-01T05:59:00Z", "pod": "p1", "message": "x"}
    found = heal(RECOVERS, replace(observed(("p1", "d1")), status={"healing": before}), NOW)
    assert found.status is not None
    assert (found.status.restarts, found.status.last_restart_time) == (1, "2026-01-01T12:00:00Z")


def test_what_several_routers_report_counts_once_from_the_earliest() -> None:
    of = observed(("p1", "d1"), since=NOW.timestamp() - 10)
    other = RouterStats(broken=(BrokenPair("p1", "d1", LONG_AGO),))
    found = heal(RECOVERS, replace(of, stats={**of.stats, "router-1": other}), NOW)
    assert found.stale == (BrokenPair("p1", "d1", LONG_AGO),)
    assert found.restart is not None


def test_where_engines_do_not_recover_the_peers_of_one_that_restarted_are_restarted() -> None:
    fresh = engine("d1", restarts=1, started="2026-01-01T06:00:00Z")
    pods = (engine("p1"), engine("p2"), fresh, engine("d2"))
    assert restarted(observed(pods=pods), FORGETS_NOTHING) == "p1"
    assert restarted(observed(pods=pods), RECOVERS) == ""
    # The pod that took p1's place started after d1 did; p2 still knows the d1 that is no more.
    pods = (engine("p3", started="2026-01-01T08:00:00Z"), engine("p2"), fresh, engine("d2"))
    assert restarted(observed(pods=pods), FORGETS_NOTHING) == "p2"
    pods = (engine("p3", started="2026-01-01T08:00:00Z"), engine("p4", started="2026-01-01T09:00:00Z"), fresh)
    assert heal(FORGETS_NOTHING, observed(pods=pods), NOW).stale == ()


def test_the_decision_restarts_tells_and_remembers() -> None:
    target = wanted()
    pods = (router_pod(), *(replace(engine(name), revision=target.revision) for name in ("p1", "d1")))
    stats = RouterStats(
        fleet_version=(1, 1), served_tokens={target.revision: 1}, broken=(BrokenPair("p1", "d1", LONG_AGO),)
    )
    decided = plan(target, serving_well(target.revision, pods=pods, stats={"router-0": stats}), NOW)
    assert decided.restart is not None
    assert decided.restart.pod == "p1"
    assert decided.status["healing"]["restarts"] == 1
    assert "EngineRestarted" in [event.reason for event in decided.events if event.warning]
    assert "PeerStale" in [event.reason for event in decided.events if event.warning]
