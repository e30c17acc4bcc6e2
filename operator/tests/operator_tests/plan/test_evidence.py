"""What the conditions of transport and reuse say, and on what evidence."""

from datetime import UTC, datetime
from typing import Any

import pytest

from duplex_connector.contract import PREFLIGHT_OVER_TCP, PREFLIGHT_PASSED, Role
from duplex_connector.proof import Reason as ProofReason
from duplex_operator.api import DisaggregatedServing
from duplex_operator.plan import Plan, Pod, RouterStats, plan
from duplex_operator.plan.evidence import LOCAL, REJECTIONS
from duplex_operator.plan.observed import BrokenPair, Canary, Reuse
from duplex_router.turn.offer import Rejection

from .build import router_pod, serving, serving_well, wanted

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def condition(decided: Plan, kind: str) -> tuple[str, str, str]:
    found = next(one for one in decided.status["conditions"] if one["type"] == kind)
    return found["status"], found["reason"], found["message"]


def decided(stats: RouterStats | None = None, of: DisaggregatedServing | None = None, **changes: Any) -> Plan:
    target = wanted(of)
    told = {} if stats is None else {"stats": {"router-0": stats}}
    return plan(target, serving_well(target.revision, **told, **changes), NOW)


def served(**values: Any) -> RouterStats:
    return RouterStats(fleet_version=(1, 1), served_tokens={wanted().revision: 1}, **values)


def moved(number: int, of: DisaggregatedServing | None = None) -> RouterStats:
    revision = wanted(of).revision
    return RouterStats(
        fleet_version=(1, 1),
        served_tokens={revision: 1},
        bytes_moved=number,
        bytes_by_revision={revision: number},
    )


def engine(role: str, revision: str, **changes: Any) -> Pod:
    values: dict[str, Any] = {"ip": "", "ready": True, "terminating": False, "trouble": None}
    return Pod(f"{role}-0", role, revision, **(values | changes))


def test_transport_is_verified_by_bytes_of_the_revision_that_serves() -> None:
    assert condition(decided(), "TransportVerified")[:2] == ("Unknown", "NoTraffic")
    found = decided(moved(9))
    assert condition(found, "TransportVerified")[:2] == ("True", "TransportObserved")
    assert found.status["transport"] == {"backend": "UCX", "network": "tcp", "verified": True, "bytesMoved": 9}
    of_another = RouterStats(
        fleet_version=(1, 1), served_tokens={wanted().revision: 1}, bytes_moved=9, bytes_by_revision={"00000000": 9}
    )
    assert condition(decided(of_another), "TransportVerified")[:2] == ("Unknown", "NoTraffic")


def test_another_backend_than_the_wanted_one_is_told() -> None:
    status, reason, message = condition(decided(served(backend="LIBFABRIC", bytes_moved=9)), "TransportVerified")
    assert (status, reason) == ("False", "FellBackToTCP")
    assert "UCX is wanted" in message


@pytest.mark.parametrize(
    ("verdicts", "expected", "network"),
    [
        ((PREFLIGHT_PASSED, PREFLIGHT_PASSED), ("True", "TransportObserved"), "efa"),
        ((PREFLIGHT_PASSED, ""), ("Unknown", "Unknown"), "efa"),
        ((PREFLIGHT_PASSED, f"preflight: {PREFLIGHT_OVER_TCP}, not EFA"), ("False", "FellBackToTCP"), "tcp"),
        (("preflight: 3 of 4 devices", PREFLIGHT_PASSED), ("False", "PreflightFailed"), "efa"),
    ],
)
def test_over_a_fabric_every_preflight_must_have_found_it(
    verdicts: tuple[str, str], expected: tuple[str, str], network: str
) -> None:
    on_gpus = serving(prefill={"instanceType": "p5en.48xlarge"}, decode={"instanceType": "p5en.48xlarge"})
    revision = wanted(on_gpus).revision
    engines = [engine(role, revision, preflight=words) for role, words in zip(Role, verdicts, strict=True)]
    found = decided(moved(9, on_gpus), on_gpus, pods=(router_pod(), *engines))
    assert condition(found, "TransportVerified")[:2] == expected
    assert found.status["transport"]["network"] == network
    assert found.status["transport"]["verified"] is (expected[0] == "True")


def test_a_pair_that_cannot_reach_each_other_is_told_whatever_has_moved() -> None:
    revision = wanted().revision
    stats = RouterStats(
        fleet_version=(1, 1),
        served_tokens={revision: 1},
        bytes_by_revision={revision: 9},
        broken=(BrokenPair("prefill-0", "decode-0", NOW.timestamp() - 5),),
    )
    pods = (router_pod(), engine("prefill", revision), engine("decode", revision))
    status, reason, message = condition(decided(stats, pods=pods), "TransportVerified")
    assert (status, reason) == ("False", "PeerStale")
    assert "prefill-0 and decode-0" in message or "prefill prefill-0 and decode decode-0" in message


def canary(**values: Any) -> RouterStats:
    return served(canaries={wanted().revision: Canary(**values)})


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        (served(), ("Unknown", "NoTraffic")),
        (canary(last_success=1.0, reused=True), ("True", "ReuseObserved")),
        (
            canary(last_success=1.0, reused=False, message="second turn: rejected;reason=diverged"),
            ("False", "PrefixMismatch"),
        ),
        (canary(last_success=1.0, reused=False, message="second turn: miss"), ("False", "CanaryFailed")),
        (canary(reused=True, failures=3, message="HTTP 500"), ("False", "CanaryFailed")),
        (canary(reused=True, failures=2, message="HTTP 500"), ("True", "ReuseObserved")),
        (served(recent=Reuse(4, full=1)), ("True", "ReuseObserved")),
        (served(recent=Reuse(4, rejected={"engine-gone": 4})), ("False", "StaleHandles")),
        (served(recent=Reuse(2, rejected={"local": 2})), ("Unknown", "NoTraffic")),
        (served(recent=Reuse(40, rejected={"local": 40})), ("Unknown", "NoTraffic")),
        (served(recent=Reuse(40, full=4, rejected={"expired": 36})), ("True", "ReuseObserved")),
        (served(recent=Reuse(40, full=3, rejected={"expired": 37})), ("False", "StaleHandles")),
        (served(reuse=Reuse(900, full=900)), ("Unknown", "NoTraffic")),
    ],
)
def test_whether_reuse_works(stats: RouterStats, expected: tuple[str, str]) -> None:
    assert condition(decided(stats), "ReuseEffective")[:2] == expected


def test_what_many_clients_see_outweighs_the_canary() -> None:
    well = Canary(last_success=1.0, reused=True)
    stats = served(canaries={wanted().revision: well}, recent=Reuse(40, rejected={"diverged": 40}))
    status, reason, message = condition(decided(stats), "ReuseEffective")
    assert (status, reason) == ("False", "PrefixMismatch")
    assert "diverged 40 times" in message
    assert "chat template" in message, "the remedy"


def test_every_reason_of_routers_and_engines_is_classified() -> None:
    told = {each.value for each in Rejection} | {each.value for each in ProofReason} - {"", LOCAL}
    assert told <= REJECTIONS.keys()
