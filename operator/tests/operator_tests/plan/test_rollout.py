"""Rollouts: the named cases, and for any course of events that a pair which can serve is never taken away."""

from dataclasses import dataclass, field, replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_operator.api import Reason
from duplex_operator.plan import Observed, RouterStats, Workload
from duplex_operator.plan.observed import Trouble
from duplex_operator.plan.rollout import Rollout, Target, roll
from duplex_operator.plan.sizes import Bounds, Sizes, Standing, capacity, next_sizes

from .build import engines, fleet, router_pod, serving_well

ONE = Sizes(1, 1)
SPARE = Bounds(1, 0)
OLDER, OLD, NEW = "older", "old", "new"
LATER = "2026-02-02T00:00:00Z"


def weights(rollout: Rollout) -> dict[str, int]:
    return dict(rollout.weights)


def step(observed: Observed, size: Sizes = ONE, bounds: Bounds = SPARE, *, held: bool = False) -> Rollout:
    return roll(Target(NEW, size, bounds, held=held), observed)


def both(*, new_ready: int = 1, served: bool = True, switched: bool = True) -> Observed:
    """Observe an old revision that serves beside a new one."""
    tokens = {OLD: 9} | ({NEW: 1} if served else {})
    return serving_well(
        OLD,
        workloads=(*engines(OLD), *engines(NEW, ready=new_ready, created=LATER)),
        fleet=fleet({NEW: 100, OLD: 0} if switched else {NEW: 0, OLD: 100}, (1, 7)),
        stats={"router-0": RouterStats(fleet_version=(1, 7), served_tokens=tokens)},
    )


def test_the_first_revision_gets_everything() -> None:
    first = step(Observed())
    assert weights(first) == {NEW: 100}
    assert (first.able, first.finished, first.sizes) == ((), False, {NEW: ONE})


def test_a_new_revision_that_is_not_ready_takes_nothing() -> None:
    now = step(both(new_ready=0, switched=False))
    assert weights(now) == {NEW: 0, OLD: 100}
    assert now.sizes == {NEW: ONE, OLD: ONE}


def test_ready_pods_are_not_enough_a_token_must_have_come_through() -> None:
    now = step(both(served=False, switched=False))
    assert weights(now) == {NEW: 0, OLD: 100}
    assert now.sizes == {NEW: ONE, OLD: ONE}


def test_where_no_router_runs_ready_pods_must_do() -> None:
    now = step(replace(both(served=False, switched=False), pods=(), stats={}))
    assert weights(now) == {NEW: 100, OLD: 0}


def test_once_a_token_came_through_the_old_one_goes() -> None:
    now = step(both())
    assert (now.sizes, weights(now)) == ({NEW: ONE}, {NEW: 100, OLD: 0})
    assert not now.finished
    done = step(replace(both(), workloads=tuple(engines(NEW))))
    assert done.finished


def partly(new_ready: int, new_size: int, old_size: int, shares: dict[str, int]) -> Observed:
    """Observe a rollout of three pairs between its steps, with the shares that routers know."""
    works = (
        *engines(OLD, ready=old_size, replicas=old_size),
        *engines(NEW, ready=new_ready, replicas=new_size, created=LATER),
    )
    return replace(both(), workloads=works, fleet=fleet(shares, (1, 7)))


def test_the_old_one_shrinks_as_the_new_one_grows() -> None:
    three = Sizes(3, 3)
    begun = step(partly(0, 0, 3, {NEW: 0, OLD: 100}), three)
    assert begun.sizes == {NEW: ONE, OLD: three}
    shrunk = step(partly(1, 1, 3, {NEW: 0, OLD: 100}), three)
    assert (shrunk.sizes, weights(shrunk)) == ({NEW: ONE, OLD: Sizes(2, 2)}, {NEW: 34, OLD: 66})
    grown = step(partly(1, 1, 2, {NEW: 34, OLD: 66}), three)
    assert grown.sizes == {NEW: Sizes(2, 2), OLD: Sizes(2, 2)}
    last = step(partly(3, 3, 1, {NEW: 100, OLD: 0}), three)
    assert last.sizes == {NEW: three}


def test_without_a_spare_engine_the_old_one_makes_room_first() -> None:
    two, none_spare = Sizes(2, 2), Bounds(0, 1)
    assert step(partly(0, 0, 2, {NEW: 0, OLD: 100}), two, none_spare).sizes == {NEW: Sizes(), OLD: ONE}
    assert step(partly(0, 0, 1, {NEW: 0, OLD: 100}), two, none_spare).sizes == {NEW: ONE, OLD: ONE}


def test_a_scale_down_to_one_leaves_the_pair_that_serves_where_the_new_one_has_its_room_already() -> None:
    # Two pairs and no spare one: the old one has given one up, and what came in its place never gets ready.
    observed = partly(0, 1, 1, {NEW: 0, OLD: 100})
    assert step(observed, ONE, Bounds(0, 1)).sizes == {NEW: ONE, OLD: ONE}
    # Where the only pair has to make the room, it goes: nothing else is possible.
    assert step(partly(0, 0, 1, {NEW: 0, OLD: 100}), ONE, Bounds(0, 1)).sizes == {NEW: Sizes()}


def test_engines_on_their_way_out_still_take_their_room() -> None:
    ending = replace(router_pod("d"), role="decode", revision=OLD, terminating=True)
    observed = partly(0, 0, 1, {NEW: 0, OLD: 100})
    assert step(observed, Sizes(2, 2), Bounds(0, 1)).sizes[NEW] == ONE
    late = replace(observed, pods=(*observed.pods, ending))
    assert step(late, Sizes(2, 2), Bounds(0, 1)).sizes[NEW] == Sizes()


def test_what_is_held_moves_nothing_and_a_scale_up_goes_to_what_serves() -> None:
    unproved = partly(0, 0, 2, {NEW: 0, OLD: 100})
    assert step(unproved, Sizes(2, 2), held=True).sizes == {NEW: Sizes(), OLD: Sizes(2, 2)}
    assert step(unproved, Sizes(4, 4), held=True).sizes == {NEW: Sizes(), OLD: Sizes(4, 4)}
    halfway = partly(1, 1, 2, {NEW: 34, OLD: 66})
    assert step(halfway, Sizes(3, 3), held=True).sizes == {NEW: ONE, OLD: Sizes(2, 2)}
    assert step(halfway, Sizes(5, 5), held=True).sizes == {NEW: Sizes(3, 3), OLD: Sizes(2, 2)}


def test_what_is_held_grows_no_further_than_there_is_room_beside_what_never_served() -> None:
    new, old = Standing(NEW, ONE, Sizes()), Standing(OLD, Sizes(), Sizes())
    for bounds, size in ((Bounds(0, 1), Sizes()), (SPARE, ONE)):
        assert next_sizes(ONE, bounds, new, [old], proved=False, held=True) == {NEW: ONE, OLD: size}


def test_a_scale_up_goes_to_the_old_one_where_the_new_one_cannot_start() -> None:
    observed = partly(0, 1, 2, {NEW: 0, OLD: 100})
    assert step(observed, Sizes(4, 4)).sizes == {NEW: ONE, OLD: Sizes(2, 2)}
    bad = Trouble(Reason.IMAGE_PULL, "no such image")
    pod = replace(router_pod("d"), role="decode", revision=NEW, ready=False, trouble=bad)
    assert step(replace(observed, pods=(*observed.pods, pod)), Sizes(4, 4)).sizes == {NEW: ONE, OLD: Sizes(4, 4)}


def test_an_abandoned_revision_that_never_ran_goes_at_once_and_the_good_one_stays() -> None:
    works = (*engines(OLDER), *engines(OLD, ready=0, created=LATER), *engines(NEW, ready=0, created="2026-03-03"))
    stats = {"router-0": RouterStats(fleet_version=(1, 7), served_tokens={OLDER: 9})}
    now = step(replace(both(switched=False), workloads=works, stats=stats))
    assert now.sizes == {NEW: ONE, OLDER: ONE}
    assert weights(now) == {NEW: 0, OLDER: 100}


def test_where_none_can_serve_the_oldest_stays_because_it_once_did() -> None:
    works = (*engines(OLDER, ready=0), *engines(OLD, ready=0, created=LATER))
    now = step(replace(both(switched=False), workloads=works, stats={"router-0": RouterStats((1, 7))}))
    assert now.sizes == {NEW: ONE, OLDER: ONE}


def test_going_back_to_the_old_revision_makes_it_the_new_one() -> None:
    works = (*engines(NEW), *engines(OLD, ready=0, created=LATER))
    served = {"router-0": RouterStats(fleet_version=(1, 7), served_tokens={NEW: 9})}
    now = step(replace(both(), workloads=works, stats=served))
    assert now.sizes == {NEW: ONE}
    assert weights(now) == {NEW: 100, OLD: 0}
    assert now.able == (NEW,)


def three(*, older: int = 3, old: int = 1, tokens: dict[str, int], shares: dict[str, int]) -> Observed:
    """Observe an edit while the rollout of a former one has not ended."""
    works = (
        *engines(OLDER, ready=older, replicas=3),
        *engines(OLD, ready=old, created=LATER),
        *engines(NEW, ready=0, replicas=0, created="2026-03-03"),
    )
    stats = {"router-0": RouterStats(fleet_version=(1, 7), served_tokens=tokens)}
    return replace(both(), workloads=works, fleet=fleet(shares, (1, 7)), stats=stats)


def test_one_that_is_ready_and_never_served_takes_nothing_from_the_one_that_serves() -> None:
    size, shares = Sizes(3, 3), {OLD: 0, OLDER: 100}
    for known in (three(tokens={OLDER: 9}, shares=shares), replace(three(tokens={}, shares=shares), stats={})):
        now = step(known, size)
        assert weights(now) == {NEW: 0, OLD: 0, OLDER: 100}
        assert now.sizes == {NEW: Sizes(), OLDER: size}


def test_old_ones_that_both_serve_share_what_begins_by_their_capacity() -> None:
    observed = three(older=2, tokens={OLDER: 9, OLD: 9}, shares={OLD: 34, OLDER: 66})
    assert weights(step(observed, Sizes(3, 3))) == {NEW: 0, OLD: 34, OLDER: 66}


def test_one_that_served_outlives_a_moment_without_ready_engines() -> None:
    # Beside a new one whose pods are ready and through which no token came: it takes the turns, and no engine yet.
    observed = both(served=False, switched=False)
    works = (*engines(OLD, ready=0), *engines(NEW, created=LATER))
    now = step(replace(observed, workloads=works))
    assert (now.sizes, weights(now)) == ({NEW: ONE, OLD: ONE}, {NEW: 100, OLD: 0})
    # And beside an abandoned one of the same kind.
    now = step(three(older=0, tokens={OLDER: 9}, shares={OLD: 0, OLDER: 100}), Sizes(3, 3))
    assert now.sizes[OLDER].pair


def test_what_was_once_proved_stays_so_while_no_router_answers() -> None:
    observed = replace(both(), stats={}, status={"revision": NEW})
    assert weights(step(observed)) == {NEW: 100, OLD: 0}
    assert weights(step(replace(observed, status={"revision": OLD}))) == {NEW: 0, OLD: 100}


def test_suspended_keeps_one_revision_and_no_size() -> None:
    now = roll(Target(NEW, Sizes(), SPARE, suspended=True), replace(both(), pods=()))
    assert (weights(now), now.sizes, now.able) == ({NEW: 100}, {NEW: Sizes()}, ())


def test_suspended_engines_stay_until_the_routers_are_gone() -> None:
    serving = both()
    suspended = Target(NEW, Sizes(), SPARE, suspended=True)
    assert roll(suspended, serving).sizes == {NEW: ONE, OLD: ONE}
    assert not roll(suspended, serving).finished
    assert roll(suspended, replace(serving, pods=())).sizes == {NEW: Sizes()}


@dataclass
class Cluster:
    """A cluster that does what it is told, late and unreliably."""

    sizes: dict[str, Sizes] = field(default_factory=dict)
    ready: dict[str, Sizes] = field(default_factory=dict)
    born: dict[str, int] = field(default_factory=dict)
    good: dict[str, bool] = field(default_factory=dict)
    mute: set[str] = field(default_factory=set)
    """Revisions whose engines become ready and bring no token."""
    served: set[str] = field(default_factory=set)
    weights: dict[str, int] = field(default_factory=dict)
    version: int = 0
    acknowledged: int = 0

    def pair(self, name: str) -> bool:
        return self.ready.get(name, Sizes()).pair

    def capacity(self, target: Sizes) -> Fraction:
        """Return what can serve: of a revision that is not taken over yet, nothing counts."""
        return sum((capacity(self.ready[name], target) for name in self.sizes if name in self.served), Fraction(0))

    def observe(self) -> Observed:
        works = [
            Workload(
                f"{name}-{role}", role, name, f"{self.born[name]:09}", getattr(size, role),
                getattr(self.ready[name], role), getattr(size, role), settled=True, refused="",
            )
            for name, size in self.sizes.items()
            for role in ("prefill", "decode")
        ]  # fmt: skip
        stats = RouterStats(fleet_version=(1, self.acknowledged), served_tokens=dict.fromkeys(self.served, 1))
        return Observed(
            workloads=tuple(works),
            pods=(router_pod(),),
            fleet=fleet(self.weights, (1, self.version)) if self.weights else None,
            stats={"router-0": stats},
        )

    def obey(self, rollout: Rollout) -> None:
        if dict(rollout.weights) != self.weights:
            self.weights = dict(rollout.weights)
            self.version += 1
        for name in rollout.sizes:
            self.born.setdefault(name, len(self.born))
        self.ready = {name: size.least(self.ready.get(name, Sizes())) for name, size in rollout.sizes.items()}
        self.sizes = dict(rollout.sizes)

    def live(self, name: str, *, how: str = "start") -> None:
        """Start what is wanted of a good revision (or one more of each), and have the canary go through it.

        Or let none of its engines answer its probes for a while.
        """
        if how == "blip":
            self.ready[name] = Sizes()
        elif self.good[name] and name in self.sizes:
            more = self.ready[name] + ONE if how == "one more" else self.sizes[name]
            self.ready[name] = more.least(self.sizes[name])
        if self.pair(name) and name not in self.mute:
            self.served.add(name)

    def edit(self, action: str) -> str:
        """Return the name of another revision, good, bad or mute."""
        name = f"r{len(self.good)}"
        self.good[name] = action != "bad edit"
        self.mute |= {name} if action == "mute edit" else set()
        return name


ACTIONS = [
    "edit",
    "bad edit",
    "mute edit",
    "blip",
    "back",
    "scale",
    "pause",
    "reconcile",
    "reconcile",
    "start",
    "one more",
    "acknowledge",
    "a while",
]
EVENTS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 3)), max_size=40)
BOUNDS = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any).map(lambda pair: Bounds(*pair))


@settings(max_examples=150, deadline=None)
@given(EVENTS, BOUNDS, st.integers(1, 5), st.integers(1, 5))
def test_whatever_happens_the_bounds_hold_a_pair_stays_and_all_ends_in_the_wanted_revision(
    events: list[tuple[str, int]], bounds: Bounds, prefill: int, decode: int
) -> None:
    cluster = Cluster(good={"r0": True})
    wanted, size, paused = "r0", Sizes(prefill, decode), False
    for action, which in events:
        names = sorted(cluster.sizes)
        if action.endswith("edit"):
            wanted = cluster.edit(action)
        elif action == "back" and names:
            wanted = names[which % len(names)]
        elif action == "scale":
            size = Sizes(1 + which, 1 + (which + decode) % 4)
        elif action == "pause":
            paused = not paused
        elif action == "reconcile":
            one_step(cluster, Target(wanted, size, bounds, held=paused))
        elif action in {"start", "one more", "blip"} and names:
            cluster.live(names[which % len(names)], how=action)
        elif action == "acknowledge":
            cluster.acknowledged = cluster.version
        elif action == "a while":
            go_on(cluster, Target(wanted, size, bounds, held=paused), rounds=1 + which)
    cluster.good[wanted] = True
    cluster.mute.clear()
    go_on(cluster, Target(wanted, size, bounds), rounds=60)
    assert cluster.sizes == {wanted: size}
    assert roll(Target(wanted, size, bounds), cluster.observe()).finished


def go_on(cluster: Cluster, target: Target, rounds: int) -> None:
    """Let everything work as it should for some time."""
    for _ in range(rounds):
        if one_step(cluster, target).finished:
            return
        for name in list(cluster.sizes):
            cluster.live(name)
        cluster.acknowledged = cluster.version


def one_step(cluster: Cluster, target: Target) -> Rollout:
    """Reconcile once, and check what must hold of each step whatever came before."""
    size, bounds = target.size, target.bounds
    before, engines_before = cluster.capacity(size), sum(cluster.sizes.values(), Sizes())
    pairs = [name for name in cluster.sizes if cluster.pair(name)]
    proved = target.revision in cluster.served
    old_count = sum(name != target.revision for name in cluster.sizes)
    old_pairs = [name for name in pairs if name != target.revision]
    once_good = [name for name, one in cluster.sizes.items() if name in cluster.served and one.pair]
    rollout = roll(target, cluster.observe())
    cluster.obey(rollout)
    units = min(size.prefill, size.decode)
    floor = Fraction(units - bounds.unavailable)
    # No less capacity than promised, where it was there; several old revisions may have to make room to get on at all.
    if old_count <= 1:
        assert cluster.capacity(size) >= min(before, floor)
    # No more engines than promised, except those that were there.
    limit = Sizes(*(-(-(units + bounds.surge) * wanted // units) for wanted in (size.prefill, size.decode)))
    total = sum(cluster.sizes.values(), Sizes())
    assert total.most(limit).most(engines_before) == limit.most(engines_before)
    still = [name for name in cluster.sizes if cluster.pair(name)]
    recreate = units == 1 and bounds.surge == 0
    if pairs and not recreate:
        assert still
        # New conversations find a pair that can serve, and one that is known to, if there is any.
        assert any(cluster.weights.get(name) for name in still)
        known = [name for name in still if name in cluster.served]
        assert not known or any(cluster.weights.get(name) for name in known)
    if once_good and not proved and not recreate:
        # What has served and does not for a moment is still there when it does again.
        assert any(cluster.sizes.get(name, Sizes()).pair for name in once_good)
    if old_pairs and not proved and not recreate:
        assert any(cluster.pair(name) for name in old_pairs)
    return rollout
