"""Which engines go and when: least of value first, announced, empty or out of time, and never unheard."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from duplex_connector.contract import Annotation
from duplex_operator.plan import Observed, Pod, RouterStats
from duplex_operator.plan.drain import Drain, Mark, drain
from duplex_operator.plan.fleet import ACKNOWLEDGE_SECONDS
from duplex_operator.plan.observed import Load
from duplex_operator.plan.rollout import Rollout
from duplex_operator.plan.sizes import Sizes

from .build import engines, fleet, router_pod

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLIER = "2026-01-01T11:59:00Z"
LONG_AGO = "2026-01-01T11:00:00Z"
SECONDS = {"prefill": 120, "decode": 120}


def pod(name: str, *, role: str = "decode", revision: str = "new", since: str = "", **more: bool) -> Pod:
    values: dict[str, bool] = {"ready": True, "terminating": False, "doomed": False} | more
    return replace(router_pod(name), role=role, revision=revision, uid=f"uid-{name}", draining_since=since, **values)


def seen(
    pods: Sequence[Pod], loads: Mapping[str, Load], *, draining: Sequence[str] = (), version: int = 1, size: int = 3
) -> Observed:
    """Observe a revision of `size` decode engines and one prefill engine, with one router."""
    prefill, decode = engines("new")
    return Observed(
        workloads=(prefill, replace(decode, replicas=size, ready=size)),
        pods=(router_pod(), pod("p-0", role="prefill"), *pods),
        fleet=fleet({"new": 100}, (1, 1)) | {"draining": list(draining)},
        stats={"router-0": RouterStats(fleet_version=(1, version), loads=loads)},
    )


def decide(observed: Observed, decode: int = 2, *, now: datetime = NOW) -> Drain:
    rollout = Rollout((("new", 100),), {"new": Sizes(1, decode)}, ("new",), finished=False)
    return drain(rollout, observed, SECONDS, now)


THREE = [pod("d-0"), pod("d-1"), pod("d-2")]
LOADS = {"d-0": Load(0, 900, 90), "d-1": Load(1, 9000, 10), "d-2": Load(0, 500, 500)}


def test_the_engine_with_the_least_live_value_is_marked_first_and_nothing_else_happens() -> None:
    now = decide(seen(THREE, LOADS))
    assert now.marks == (Mark("d-1", "uid-d-1", "2026-01-01T12:00:00Z"),)
    assert now.marks[0].annotations() == {Annotation.DRAINING: "2026-01-01T12:00:00Z"}
    assert (now.sizes, now.announced) == ({"new": Sizes(1, 3)}, ())


def marked(since: str = EARLIER, **more: bool) -> list[Pod]:
    return [pod("d-0"), pod("d-1", since=since, **more), pod("d-2")]


def test_what_is_marked_is_announced_and_stays_the_choice_whatever_it_holds_now() -> None:
    now = decide(seen(marked(), LOADS | {"d-1": Load(0, 9000, 9000)}))
    assert now.announced == ("d-1",)
    assert (now.sizes, now.marks) == ({"new": Sizes(1, 3)}, ())
    assert now.waiting == ("d-1 (0 legs, 9000 tokens held)",)


IDLE = {"d-0": Load(0, 900, 90)}


def test_it_may_go_once_routers_have_heard_and_nothing_is_left_on_it() -> None:
    done = Mark("d-1", "uid-d-1", EARLIER, done=True)
    assert done.annotations() == {Annotation.DRAINING: EARLIER, Annotation.DELETION_COST: "-1000"}
    assert decide(seen(marked(), IDLE, draining=["d-1"])).marks == (done,)
    for unheard in (
        seen(marked(), IDLE),
        seen(marked(), IDLE, draining=["d-1"], version=0),
        replace(seen(marked(), IDLE, draining=["d-1"]), stats={}),
    ):
        assert decide(unheard).marks == ()
    for busy in (Load(1, 0, 0), Load(0, 16, 0)):
        assert decide(seen(marked(), {"d-1": busy}, draining=["d-1"])).marks == ()


def test_every_router_counts() -> None:
    observed = seen(marked(), IDLE, draining=["d-1"])
    second = replace(observed, pods=(*observed.pods, router_pod("router-1")))
    assert decide(second).marks == ()
    behind = {"router-1": RouterStats(fleet_version=(1, 0))}
    assert decide(replace(second, stats=dict(observed.stats) | behind)).marks == ()
    holding = {"router-1": RouterStats(fleet_version=(1, 1), loads={"d-1": Load(0, 1, 0)})}
    assert decide(replace(second, stats=dict(observed.stats) | holding)).marks == ()
    heard = {"router-1": RouterStats(fleet_version=(1, 1))}
    assert decide(replace(second, stats=dict(observed.stats) | heard)).marks != ()


def test_neither_a_hold_nor_a_silent_router_keeps_it_for_ever() -> None:
    held = seen(marked(LONG_AGO), LOADS, draining=["d-1"])
    assert decide(held).marks == (Mark("d-1", "uid-d-1", LONG_AGO, done=True),)
    silent = replace(held, stats={}, fleet_age=ACKNOWLEDGE_SECONDS)
    assert decide(silent).marks == (Mark("d-1", "uid-d-1", LONG_AGO, done=True),)
    assert decide(replace(silent, fleet_age=ACKNOWLEDGE_SECONDS - 1)).marks == ()


def test_only_then_the_deployment_shrinks_and_by_those_that_are_done() -> None:
    assert decide(seen(marked(doomed=True), IDLE, draining=["d-1"])).sizes == {"new": Sizes(1, 2)}
    two_go = decide(seen(marked(doomed=True), IDLE, draining=["d-1"]), decode=1)
    assert two_go.sizes == {"new": Sizes(1, 2)}
    # The Deployment is smaller already, and its pods are not yet.
    behind = decide(seen(marked(doomed=True), IDLE, draining=["d-1"], size=2), decode=1)
    assert behind.sizes == {"new": Sizes(1, 2)}
    assert [mark.pod for mark in behind.marks if not mark.since] == []


def test_a_scale_up_takes_the_mark_off_again() -> None:
    now = decide(seen(marked(), LOADS, draining=["d-1"]), decode=3)
    assert now.marks == (Mark("d-1", "uid-d-1"),)
    assert now.marks[0].annotations() == {}
    assert (now.announced, now.sizes) == ((), {"new": Sizes(1, 3)})


def test_engines_that_are_not_ready_go_first_and_at_once() -> None:
    sick = [pod("d-0"), pod("d-1"), pod("d-2", ready=False)]
    assert decide(seen(sick, LOADS)).sizes == {"new": Sizes(1, 2)}
    assert decide(seen(sick[:2], LOADS)).sizes == {"new": Sizes(1, 2)}


def test_one_that_is_not_ready_is_marked_as_the_one_to_go_before_its_deployment_shrinks() -> None:
    # Were it ready by the time the ReplicaSet chooses, another would go that no router has been told of.
    sick = [pod("d-0"), pod("d-1"), pod("d-2", ready=False)]
    assert decide(seen(sick, LOADS)).marks == (Mark("d-2", "uid-d-2", "2026-01-01T12:00:00Z", done=True),)
    assert decide(seen([*sick[:2], pod("d-2", ready=False, doomed=True)], LOADS)).marks == ()
    back = pod("d-2", since=EARLIER, doomed=True)
    assert decide(seen([*sick[:2], back], LOADS), decode=3).marks == (Mark("d-2", "uid-d-2"),)
    # Where all go there is nothing to choose.
    assert decide(seen(sick[2:], {}, size=1), decode=0).marks == ()


def test_a_prefill_engine_goes_once_no_leg_is_on_it() -> None:
    prefill, decode = engines("new")
    pods = (router_pod(), pod("p-0", role="prefill"), pod("p-1", role="prefill", since=EARLIER), pod("d-0"))
    observed = replace(
        seen([], {}, draining=["p-1"]), workloads=(replace(prefill, replicas=2, ready=2), decode), pods=pods
    )
    assert decide(observed, decode=1).marks == (Mark("p-1", "uid-p-1", EARLIER, done=True),)
    busy = {"router-0": RouterStats(fleet_version=(1, 1), loads={"p-1": Load(1, 0, 0)})}
    assert decide(replace(observed, stats=busy), decode=1).marks == ()


def test_engines_that_somebody_deletes_are_named_too() -> None:
    evicted = pod("p-1", role="prefill", terminating=True)
    ending = [
        pod("d-0"),
        pod("d-1"),
        pod("d-2", terminating=True),
        evicted,
        pod("other", role="router", terminating=True),
    ]
    now = decide(seen(ending, LOADS))
    assert now.announced == ("d-2", "p-1")
    assert now.marks == ()


OLD_PAIR = (pod("old-p", role="prefill", revision="old"), pod("old-d", revision="old"))


def leaving(since: str, load: Load, draining: Sequence[str] = (), **more: bool) -> Observed:
    """Observe the last pair of a revision that is to go, beside the one that takes over."""
    observed = seen(THREE, {"old-d": load} if load != Load() else {}, draining=draining)
    pair = [replace(one, draining_since=since, **more) for one in OLD_PAIR]  # type: ignore[arg-type] # flags
    return replace(observed, workloads=(*observed.workloads, *engines("old")), pods=(*observed.pods, *pair))


def test_conversations_end_on_the_last_pair_of_their_revision() -> None:
    first = decide(leaving("", Load(0, 700, 70)), decode=3)
    assert {mark.pod for mark in first.marks} == {"old-p", "old-d"}
    held = decide(leaving(EARLIER, Load(0, 700, 70)), decode=3)
    assert (held.announced, held.marks, held.sizes["old"]) == ((), (), Sizes(1, 1))
    ended = decide(leaving(EARLIER, Load()), decode=3)
    assert (ended.announced, ended.sizes["old"]) == (("old-d", "old-p"), Sizes(1, 1))
    too_long = decide(leaving(LONG_AGO, Load(0, 700, 70)), decode=3)
    assert too_long.announced == ("old-d", "old-p")
    heard = decide(leaving(EARLIER, Load(), ["old-d", "old-p"]), decode=3)
    assert {(mark.pod, mark.done) for mark in heard.marks} == {("old-p", True), ("old-d", True)}
    gone = decide(leaving(EARLIER, Load(), ["old-d", "old-p"], doomed=True), decode=3)
    assert gone.sizes == {"new": Sizes(1, 3)}


def test_an_unheard_shift_of_new_conversations_is_waited_for() -> None:
    """A router that still begins conversations on the last pair makes "nothing is held there" mean nothing."""
    unheard = replace(leaving(EARLIER, Load()), stats={"router-0": RouterStats(fleet_version=(1, 0))})
    assert decide(unheard, decode=3).announced == ()


def test_a_last_pair_that_is_announced_stays_so_while_routers_have_not_heard_of_it() -> None:
    told = replace(leaving(EARLIER, Load(), ["old-d", "old-p"]), stats={"router-0": RouterStats(fleet_version=(1, 0))})
    assert decide(told, decode=3).announced == ("old-d", "old-p"), "else each telling would take itself back"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_removal_ends_whatever_the_size(size: int) -> None:
    pods, replicas, draining, now = list(THREE), 3, [""], NOW
    for _ in range(12):
        now += timedelta(seconds=3)
        observed = seen(pods, {}, draining=draining, size=replicas)
        decided = decide(observed, decode=size, now=now)
        marks = {mark.pod: mark for mark in decided.marks}
        draining, replicas = list(decided.announced), decided.sizes["new"].decode
        pods = [
            replace(one, draining_since=marks[one.name].since, doomed=marks[one.name].done)
            if one.name in marks
            else one
            for one in pods
        ]
        pods = sorted(pods, key=lambda one: not one.doomed)[max(0, len(pods) - replicas) :]
    assert len(pods) == replicas == size
    assert not any(one.draining_since for one in pods)
