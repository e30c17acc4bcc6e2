"""Rollouts: the named cases, and for any course of events that a pair which can serve is never taken away."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_operator.plan import Observed, RouterStats, Workload
from duplex_operator.plan.rollout import ACKNOWLEDGE_SECONDS, Rollout, roll

from .build import engines, fleet, router_pod, serving_well

ONE = {"prefill": 1, "decode": 1}
OLDER, OLD, NEW = "older", "old", "new"
LATER = "2026-02-02T00:00:00Z"


def weights(rollout: Rollout) -> dict[str, int]:
    return dict(rollout.fleet.revisions)


def step(observed: Observed, replicas: dict[str, int] | None = None) -> Rollout:
    return roll(NEW, replicas or ONE, observed, suspended=False)


def both(*, new_ready: int = 1, served: bool = True, heard: bool = True, switched: bool = True) -> Observed:
    """Observe an old revision that serves beside a new one."""
    tokens = {OLD: 9} | ({NEW: 1} if served else {})
    return serving_well(
        OLD,
        workloads=(*engines(OLD), *engines(NEW, ready=new_ready, created=LATER)),
        fleet=fleet({NEW: 100, OLD: 0} if switched else {NEW: 0, OLD: 100}, (1, 7)),
        stats={"router-0": RouterStats(fleet_version=(1, 7) if heard else (1, 6), served_tokens=tokens)},
    )


def test_the_first_revision_gets_everything() -> None:
    first = step(Observed())
    assert weights(first) == {NEW: 100}
    assert (first.able, first.finished, first.sizes) == ((), False, {})


def test_a_new_revision_that_is_not_ready_takes_nothing() -> None:
    now = step(both(new_ready=0, switched=False))
    assert weights(now) == {NEW: 0, OLD: 100}
    assert now.sizes == {OLD: ONE}


def test_ready_pods_are_not_enough_a_token_must_have_come_through() -> None:
    now = step(both(served=False, switched=False))
    assert weights(now) == {NEW: 0, OLD: 100}
    assert now.sizes == {OLD: ONE}


def test_where_no_router_runs_ready_pods_must_do() -> None:
    now = step(replace(both(served=False, switched=False), pods=(), stats={}))
    assert weights(now) == {NEW: 100, OLD: 0}


def test_routers_are_told_before_anything_is_taken() -> None:
    now = step(both(switched=False))
    assert weights(now) == {NEW: 100, OLD: 0}
    assert now.sizes == {OLD: ONE}


def test_a_router_that_has_not_heard_is_waited_for_within_a_bound() -> None:
    deaf = both(heard=False)
    assert step(deaf).sizes == {OLD: ONE}
    assert step(replace(deaf, stats={})).sizes == {OLD: ONE}
    assert step(replace(deaf, fleet_age=ACKNOWLEDGE_SECONDS)).sizes == {}


def test_once_heard_the_old_one_goes() -> None:
    now = step(both())
    assert now.sizes == {}
    assert not now.finished
    done = step(replace(both(), workloads=tuple(engines(NEW))))
    assert done.finished


def test_the_old_one_shrinks_as_the_new_one_grows() -> None:
    three = {"prefill": 3, "decode": 3}
    old, new = engines(OLD, ready=3, replicas=3), engines(NEW, ready=1, replicas=3, created=LATER)
    now = step(replace(both(), workloads=(*old, *new)), three)
    assert now.sizes == {OLD: {"prefill": 2, "decode": 2}}
    new = engines(NEW, ready=3, replicas=3, created=LATER)
    assert step(replace(both(), workloads=(*old, *new)), three).sizes == {}


def test_an_abandoned_revision_that_never_ran_goes_at_once_and_the_good_one_stays() -> None:
    works = (*engines(OLDER), *engines(OLD, ready=0, created=LATER), *engines(NEW, ready=0, created="2026-03-03"))
    now = step(replace(both(switched=False), workloads=works))
    assert now.sizes == {OLDER: ONE}
    assert weights(now) == {NEW: 0, OLDER: 100}


def test_where_none_can_serve_the_oldest_stays_because_it_once_did() -> None:
    works = (*engines(OLDER, ready=0), *engines(OLD, ready=0, created=LATER))
    now = step(replace(both(switched=False), workloads=works))
    assert now.sizes == {OLDER: ONE}


def test_going_back_to_the_old_revision_makes_it_the_new_one() -> None:
    works = (*engines(NEW), *engines(OLD, ready=0, created=LATER))
    served = {"router-0": RouterStats(fleet_version=(1, 7), served_tokens={NEW: 9})}
    now = step(replace(both(), workloads=works, stats=served))
    assert now.sizes == {} or OLD in now.sizes
    assert weights(now) == {NEW: 100, OLD: 0}
    assert now.able == (NEW,)


def test_suspended_keeps_one_revision_and_no_size() -> None:
    now = roll(NEW, {"prefill": 0, "decode": 0}, both(), suspended=True)
    assert (weights(now), now.sizes, now.able) == ({NEW: 100}, {}, ())


def test_terminating_decode_pods_are_named_as_draining() -> None:
    ending = replace(router_pod("d"), role="decode", terminating=True)
    other = replace(router_pod("p"), role="prefill", terminating=True)
    assert step(replace(both(), pods=(router_pod(), ending, other))).fleet.draining == ("d",)


@dataclass
class Cluster:
    """A cluster that does what it is told, late and unreliably."""

    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    ready: dict[str, dict[str, int]] = field(default_factory=dict)
    born: dict[str, int] = field(default_factory=dict)
    good: dict[str, bool] = field(default_factory=dict)
    served: set[str] = field(default_factory=set)
    weights: dict[str, int] = field(default_factory=dict)
    version: int = 0
    acknowledged: int = 0

    def pair(self, name: str) -> bool:
        return all(self.ready.get(name, {}).get(role, 0) > 0 for role in ONE)

    def observe(self) -> Observed:
        works = [
            Workload(
                f"{name}-{role}", role, name, f"{self.born[name]:09}", size, self.ready[name][role], size,
                settled=True, refused="", overdue=False,
            )
            for name, roles in self.sizes.items()
            for role, size in roles.items()
        ]  # fmt: skip
        stats = RouterStats(fleet_version=(1, self.acknowledged), served_tokens=dict.fromkeys(self.served, 1))
        return Observed(
            workloads=tuple(works),
            pods=(router_pod(),),
            fleet=fleet(self.weights, (1, self.version)) if self.weights else None,
            stats={"router-0": stats},
        )

    def obey(self, rollout: Rollout, wanted: str, replicas: dict[str, int]) -> None:
        if dict(rollout.fleet.revisions) != self.weights:
            self.weights = dict(rollout.fleet.revisions)
            self.version += 1
        sizes = {wanted: dict(replicas), **{name: dict(roles) for name, roles in rollout.sizes.items()}}
        for name, roles in sizes.items():
            self.born.setdefault(name, len(self.born))
            ready = self.ready.get(name, {})
            self.ready[name] = {role: min(size, ready.get(role, 0)) for role, size in roles.items()}
        self.sizes = sizes
        self.ready = {name: ready for name, ready in self.ready.items() if name in sizes}

    def live(self, name: str) -> None:
        """Start what is wanted of a good revision, and have the canary go through it."""
        if self.good[name] and name in self.sizes:
            self.ready[name] = dict(self.sizes[name])
        if self.pair(name):
            self.served.add(name)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["edit", "bad edit", "reconcile", "start", "acknowledge"]), st.integers(0, 3)),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(EVENTS, st.integers(1, 3))
def test_no_course_of_events_takes_the_last_pair_away_and_all_end_in_the_wanted_revision(
    events: list[tuple[str, int]], size: int
) -> None:
    replicas = {"prefill": size, "decode": size}
    cluster = Cluster(good={"r0": True})
    wanted = "r0"
    for action, which in events:
        names = sorted(cluster.sizes)
        if action in {"edit", "bad edit"}:
            wanted = f"r{len(cluster.good)}"
            cluster.good[wanted] = action == "edit"
        elif action == "reconcile":
            before = [name for name in cluster.sizes if cluster.pair(name)]
            rollout = roll(wanted, replicas, cluster.observe(), suspended=False)
            cluster.obey(rollout, wanted, replicas)
            still = [name for name in cluster.sizes if cluster.pair(name)]
            assert bool(still) == bool(before)
            if before:
                # New conversations find a pair that can serve.
                assert any(cluster.weights.get(name) for name in still)
        elif action == "start" and names:
            cluster.live(names[which % len(names)])
        elif action == "acknowledge":
            cluster.acknowledged = cluster.version
    cluster.good.setdefault(wanted, True)
    cluster.good[wanted] = True
    for _ in range(8):
        cluster.obey(roll(wanted, replicas, cluster.observe(), suspended=False), wanted, replicas)
        cluster.live(wanted)
        cluster.acknowledged = cluster.version
    assert cluster.sizes == {wanted: replicas}
    assert roll(wanted, replicas, cluster.observe(), suspended=False).finished
