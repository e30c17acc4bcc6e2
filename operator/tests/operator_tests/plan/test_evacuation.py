"""Engines on nodes that are about to go: replaced first as far as there is room, and never fewer than promised."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_operator.plan import Observed, Pod, RouterStats
from duplex_operator.plan.drain import Drain, drain
from duplex_operator.plan.evacuation import Room, evacuate, room_of
from duplex_operator.plan.observed import TIME
from duplex_operator.plan.rollout import Rollout
from duplex_operator.plan.sizes import Bounds, Sizes

from .build import engines, fleet, router_pod
from .test_drain import EARLIER, NOW, SECONDS, pod

SPARE = Room(Sizes(1, 1), Sizes(0, 0))
NONE_SPARE = Room(Sizes(0, 0), Sizes(1, 1))


def on(node: str, one: Pod, *, cordoned: bool = False, ending: bool = False) -> Pod:
    return replace(one, node=node, cordoned=cordoned or ending, ending=ending)


GOOD, BAD = on("n-1", pod("d-0")), on("n-2", pod("d-1"), cordoned=True)


def decide(decode: Sequence[Pod], room: Room | None, *, wants: int = 2, has: int = 2) -> Drain:
    prefill, works = engines("new")
    observed = Observed(
        workloads=(prefill, replace(works, replicas=has)),
        pods=(router_pod(), pod("p-0", role="prefill"), *decode),
        fleet=fleet({"new": 100}) | {"draining": [one.name for one in decode if one.draining_since]},
        stats={"router-0": RouterStats(fleet_version=(1, 1))},
    )
    rollout = Rollout((("new", 100),), {"new": Sizes(1, wants)}, ("new",), finished=False)
    return drain(rollout, observed, SECONDS, NOW, room)


def test_a_replacement_comes_first() -> None:
    now = decide([GOOD, BAD], SPARE)
    assert (now.sizes["new"].decode, now.marks, now.announced) == (3, (), ())
    assert now.unreplaced == (BAD,)
    still = decide([GOOD, BAD, on("n-1", pod("d-2", ready=False))], SPARE, has=3)
    assert (still.sizes["new"].decode, still.marks) == (3, ())


def test_then_the_engine_on_the_cordoned_node_goes_by_the_road_of_all() -> None:
    fresh = on("n-1", pod("d-2"))
    ready = decide([GOOD, BAD, fresh], SPARE, has=3)
    assert [(mark.pod, mark.done) for mark in ready.marks] == [("d-1", False)]
    assert ready.sizes["new"].decode == 3
    emptied = decide([GOOD, replace(BAD, draining_since=EARLIER), fresh], SPARE, has=3)
    assert [(mark.pod, mark.done) for mark in emptied.marks] == [("d-1", True)]
    gone = decide([GOOD, replace(BAD, draining_since=EARLIER, doomed=True), fresh], SPARE, has=3)
    assert gone.sizes["new"].decode == 2
    # Its pod is still there after the Deployment has shrunk: to grow again would keep it.
    late = decide([GOOD, replace(BAD, draining_since=EARLIER, doomed=True), fresh], SPARE, has=2)
    assert late.sizes["new"].decode == 2


def test_without_a_spare_engine_it_is_emptied_first_and_the_replacement_comes_after() -> None:
    now = decide([GOOD, BAD], NONE_SPARE)
    assert (now.sizes["new"].decode, [mark.pod for mark in now.marks]) == (2, ["d-1"])
    doomed = replace(BAD, draining_since=EARLIER, doomed=True)
    assert decide([GOOD, doomed], NONE_SPARE).sizes["new"].decode == 1
    assert decide([GOOD, replace(doomed, terminating=True)], NONE_SPARE, has=1).sizes["new"].decode == 2


def test_a_scale_down_takes_engines_on_cordoned_nodes_first_and_needs_no_replacement() -> None:
    now = decide([GOOD, BAD, on("n-1", pod("d-2"))], SPARE, wants=1, has=3)
    assert {mark.pod for mark in now.marks} == {"d-1", "d-0"} or {mark.pod for mark in now.marks} == {"d-1"}
    assert "d-1" in {mark.pod for mark in now.marks}
    assert now.sizes["new"].decode == 3


def test_one_that_is_not_ready_is_replaced_at_once() -> None:
    sick = replace(BAD, ready=False)
    now = decide([GOOD, sick], SPARE)
    assert [(mark.pod, mark.done) for mark in now.marks] == [("d-1", True)]
    assert now.sizes["new"].decode == 1
    assert decide([GOOD, replace(sick, terminating=True)], SPARE, has=1).sizes["new"].decode == 2


def test_a_node_that_ends_anyhow_is_emptied_without_waiting_for_a_replacement() -> None:
    ending = on("n-2", pod("d-1"), ending=True)
    now = decide([GOOD, ending], SPARE)
    assert (now.sizes["new"].decode, [mark.pod for mark in now.marks]) == (3, ["d-1"])


def test_an_uncordoned_node_keeps_its_engine() -> None:
    back = replace(BAD, cordoned=False, draining_since=EARLIER)
    now = decide([GOOD, back], SPARE)
    assert [(mark.pod, mark.since) for mark in now.marks] == [("d-1", "")]
    assert now.announced == ()


def test_while_a_rollout_goes_on_engines_stay_until_it_takes_them() -> None:
    now = decide([GOOD, BAD], None)
    assert (now.sizes["new"].decode, now.marks, now.unreplaced) == (2, (), ())


def test_room_is_counted_in_matched_units() -> None:
    assert room_of(Sizes(2, 4), Bounds(1, 0)) == Room(Sizes(1, 2), Sizes())
    assert room_of(Sizes(2, 4), Bounds(0, 9)) == Room(Sizes(), Sizes(2, 4))
    assert evacuate([GOOD, BAD], 2, 1, 0, lambda one: (one.name,)).size == 3


@dataclass
class Site:
    """One role of a revision with a ReplicaSet, kubelets and a router that are late and do what they are told."""

    wants: int
    room: Room
    pods: list[Pod] = field(default_factory=list)
    replicas: int = 0
    draining: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()
    cordoned: set[str] = field(default_factory=set)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    made: int = 0

    def serving(self) -> int:
        """Count what turns may begin on. One that was given up before it was ready is none, whatever it does then."""
        return sum(one.ready and not one.doomed and one.name not in self.draining for one in self.pods)

    def start(self) -> None:
        """Make the pods that are missing, on the good node with the fewest, and delete as a ReplicaSet does."""
        while len(self.pods) < self.replicas:
            nodes = sorted({"a", "b", "c", "d"} - self.cordoned) or ["pending"]
            fewest = min(nodes, key=lambda name: sum(one.node == name for one in self.pods))
            self.pods.append(on(fewest, pod(f"d-{self.made}", ready=False)))
            self.made += 1
        order = sorted(self.pods, key=lambda one: (one.ready, not one.doomed, -int(one.name[2:])))
        self.pods = order[max(0, len(self.pods) - self.replicas) :]

    def ready(self, number: int) -> None:
        for place, one in enumerate(self.pods):
            if not one.ready and number and one.node != "pending":
                self.pods[place] = replace(one, ready=True)
                number -= 1

    def reconcile(self) -> None:
        self.now += timedelta(seconds=3)
        seen = [replace(one, cordoned=one.node in self.cordoned) for one in self.pods]
        prefill, decode = engines("new")
        observed = Observed(
            workloads=(prefill, replace(decode, replicas=self.replicas)),
            pods=(router_pod(), pod("p-0", role="prefill"), *seen),
            fleet=fleet({"new": 100}, (1, 2)) | {"draining": list(self.draining)},
            stats={"router-0": RouterStats(fleet_version=(1, 2 if self.heard == self.draining else 1))},
        )
        rollout = Rollout((("new", 100),), {"new": Sizes(1, self.wants)}, ("new",), finished=False)
        decided = drain(rollout, observed, SECONDS, self.now, self.room)
        before, total = self.serving(), len(self.pods)
        self.draining = tuple(name for name in decided.announced if name != "p-0")
        floor = self.wants - self.room.missing.decode
        assert self.serving() >= min(before, floor)
        assert decided.sizes["new"].decode <= max(total, self.replicas, self.wants + self.room.spare.decode)
        marks = {mark.pod: mark for mark in decided.marks}
        for mark in marks.values():
            assert not mark.since or datetime.strptime(mark.since, TIME)  # noqa: DTZ007 - its form only
        self.pods = [
            replace(one, draining_since=marks[one.name].since, doomed=marks[one.name].done)
            if one.name in marks
            else one
            for one in self.pods
        ]
        self.replicas = decided.sizes["new"].decode


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["cordon", "uncordon", "scale", "reconcile", "start", "ready", "hear"]), st.integers(0, 3)
    ),
    max_size=40,
)


@settings(max_examples=120, deadline=None)
@given(EVENTS, st.integers(1, 4), st.sampled_from([SPARE, NONE_SPARE, Room(Sizes(2, 2), Sizes(1, 1))]))
def test_whatever_is_cordoned_nobody_misses_an_engine_and_all_ends_on_good_nodes(
    events: list[tuple[str, int]], wants: int, room: Room
) -> None:
    site = Site(wants, room, replicas=wants)
    site.start()
    site.ready(wants)
    for action, which in events:
        node = "abcd"[which]
        if action == "cordon":
            site.cordoned.add(node)
        elif action == "uncordon":
            site.cordoned.discard(node)
        elif action == "scale":
            site.wants = 1 + which
        elif action == "reconcile":
            site.reconcile()
        elif action == "start":
            site.start()
        elif action == "ready":
            site.ready(which)
        else:
            site.heard = site.draining
    site.cordoned.discard("a")
    for _ in range(120):
        site.reconcile()
        site.heard = site.draining
        site.start()
        site.ready(1)
    assert len(site.pods) == site.replicas == site.wants
    assert not {one.node for one in site.pods} & (site.cordoned | {"pending"})
    assert not any(one.draining_since or one.doomed for one in site.pods)
