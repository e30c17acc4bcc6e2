"""Two-phase removal of engines: first out of the routers' choice, then empty, then deleted.

A Deployment that is to have fewer engines keeps its size until the engines that go are done: those that hold least of
value are marked (an annotation with the time), named in the fleet document, and, once every router has acknowledged
it, left until no turn uses them and nothing is held on them, at most `drainSeconds`. Then the ReplicaSet is told which
ones to delete (pod-deletion-cost), and only then the Deployment shrinks. A scale-up meanwhile takes the mark off again.
The last pair of a revision that goes is announced last of all: until then its conversations end on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duplex_connector.contract import Annotation, Role
from duplex_operator.plan.evacuation import Evacuation, Room, evacuate
from duplex_operator.plan.fleet import acknowledged, ready_routers
from duplex_operator.plan.observed import FIRST_TO_GO, TIME, Load, Observed, Pod
from duplex_operator.plan.rollout import Rollout
from duplex_operator.plan.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Mark:
    """What an engine pod's annotations of ours shall be. ``since`` empty: it stays. ``done``: it may be deleted."""

    pod: str
    uid: str
    since: str = ""
    done: bool = False

    def annotations(self) -> dict[str, Any]:
        """Return the annotations as the API has them."""
        return ({Annotation.DRAINING: self.since} if self.since else {}) | (
            {Annotation.DELETION_COST: FIRST_TO_GO} if self.done else {}
        )


@dataclass(frozen=True, slots=True)
class Drain:
    """``sizes``: replicas by revision now. ``announced``: pods that take nothing new. ``marks``: to be written.

    ``waiting``: pods that are marked and not done, and why, for people. ``unreplaced``: engines that stay on nodes
    that are about to go, for want of others that are ready.
    """

    sizes: Mapping[str, Sizes]
    announced: tuple[str, ...]
    marks: tuple[Mark, ...]
    waiting: tuple[str, ...]
    unreplaced: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class _View:
    """What is known of the routers' side: ``acknowledged``: all know the document that is written."""

    acknowledged: bool
    announced: frozenset[str]
    loads: Mapping[str, Load] | None
    now: datetime
    seconds: Mapping[str, int]

    def load(self, pod: Pod) -> Load:
        return (self.loads or {}).get(pod.name, Load())

    def idle(self, pod: Pod) -> bool:
        """Tell whether no turn uses a pod and nothing is held on it, as far as every router says."""
        load = self.load(pod)
        return self.loads is not None and not load.legs and not (load.tokens and pod.role == Role.DECODE)

    def order(self, pod: Pod) -> tuple[bool, bool, bool, bool, int, int, str]:
        """Sort engines that may go: what is not ready, what has begun to go, then what holds least of live value."""
        load = self.load(pod)
        begun = (not pod.doomed, not pod.draining_since, not pod.cordoned)
        return pod.ready, *begun, load.value, load.legs, pod.name

    def stamp(self, pod: Pod) -> str:
        """Return since when a pod is taken out of use: now, where it is not yet."""
        return pod.draining_since or self.now.strftime(TIME)

    def overdue(self, pod: Pod) -> bool:
        waited = self.now.replace(tzinfo=None) - datetime.strptime(pod.draining_since, TIME)  # noqa: DTZ007 - UTC
        return waited.total_seconds() >= self.seconds[pod.role]


def drain(
    rollout: Rollout, observed: Observed, seconds: Mapping[str, int], now: datetime, room: Room | None = None
) -> Drain:
    """Decide what may be taken away now of what the rollout wants to be gone. ``seconds``: longest wait by role.

    ``room``: what there may be more or less of while engines leave nodes that are about to go; None: they stay, unless
    the rollout takes them away.
    """
    view = _View(
        acknowledged=acknowledged(observed),
        announced=frozenset((observed.fleet or {}).get("draining") or ()),
        loads=_loads(observed),
        now=now,
        seconds=seconds,
    )
    present: dict[str, dict[str, int]] = {}
    for work in observed.workloads:
        present.setdefault(work.revision, {})[work.role] = work.replicas
    sizes, announced, marks, waiting, unreplaced = {}, [], [], [], []
    for revision in {**rollout.sizes, **{name: Sizes() for name in present if name not in rollout.sizes}}:
        wanted = rollout.sizes.get(revision, Sizes())
        roles = {
            role: _role(
                role, _pods(observed, revision, role), present.get(revision, {}).get(role, 0), wanted, room, view
            )
            for role in Role
        }
        marks += [mark for one in roles.values() for mark in one.marks]
        unreplaced += [pod for one in roles.values() for pod in one.unreplaced]
        victims = {role.value: one.victims for role, one in roles.items()}
        last = _last_pair(victims, view) if revision in present and not wanted.pair else ()
        for pod in (pod for one in roles.values() for pod in one.victims if pod.ready):
            named = bool(pod.draining_since) and pod not in last
            announced += [pod.name] if named else []
            mark = _mark(pod, view, named=named)
            marks += [mark] if mark is not None else []
            waiting += [] if pod.doomed else [_words(pod, view)]
        size = Sizes(*(one.size for one in roles.values()))
        if size or revision in rollout.sizes:
            sizes[revision] = size
    # Whoever deletes a pod past the operator: its preStop hook waits for what routers have there.
    ending = [pod.name for pod in observed.pods if pod.role in tuple(Role) and pod.terminating]
    return Drain(sizes, tuple(sorted({*announced, *ending})), tuple(marks), tuple(waiting), tuple(unreplaced))


@dataclass(frozen=True, slots=True)
class _OneRole:
    """One role of a revision: which of its engines go, the size of its Deployment now, and what follows at once."""

    victims: list[Pod]
    size: int
    marks: list[Mark]
    unreplaced: tuple[Pod, ...]


def _role(  # noqa: PLR0917 - what is known of one role
    role: str, pods: Sequence[Pod], has: int, wanted: Sizes, room: Room | None, view: _View
) -> _OneRole:
    wants: int = getattr(wanted, role)
    living = [pod for pod in pods if not pod.terminating]
    leaving = Evacuation(wants)
    if room is not None:
        leaving = evacuate(living, wants, getattr(room.spare, role), getattr(room.missing, role), view.order)
    # Replicas without a pod need nobody's leave. Of more pods than replicas some are about to be deleted.
    number = max(len(living) - leaving.size, len(leaving.first))
    others = sorted((pod for pod in living if pod not in leaving.first), key=view.order)
    victims = [*leaving.first, *others][:number]
    stay = len(living) - sum(not pod.ready or pod.doomed for pod in victims)
    # Those that are gone go before others come: a Deployment that shrinks and grows at once deletes nothing.
    least = stay if leaving.gone else max(leaving.size, stay)
    size = min(has, least) if leaving.gone or leaving.size < has else leaving.size
    unmarked = [Mark(pod.name, pod.uid) for pod in living if pod.draining_since and pod not in victims]
    # One that is not ready needs no time to empty; the mark tells the ReplicaSet which one goes, also if it is ready by
    # then: without it, one that nobody has announced would go in its place. Where all go there is no choice.
    chosen = [pod for pod in victims if not pod.ready] if len(victims) < len(living) else []
    sick = [
        Mark(pod.name, pod.uid, view.stamp(pod), done=True)
        for pod in living
        if pod in (*leaving.gone, *chosen) and not pod.doomed
    ]
    return _OneRole(victims, size, [*unmarked, *sick], leaving.waiting)


def _loads(observed: Observed) -> Mapping[str, Load] | None:
    """Return what all routers together have on each engine; None where one that is ready has not said."""
    if any(name not in observed.stats for name in ready_routers(observed)):
        return None
    loads: dict[str, Load] = {}
    for stats in observed.stats.values():
        for pod, load in stats.loads.items():
            former = loads.get(pod, Load())
            loads[pod] = Load(former.legs + load.legs, former.tokens + load.tokens, former.value + load.value)
    return loads


def _pods(observed: Observed, revision: str, role: str) -> list[Pod]:
    return [pod for pod in observed.pods if pod.revision == revision and pod.role == role]


def _last_pair(victims: Mapping[str, Sequence[Pod]], view: _View) -> tuple[Pod, ...]:
    """Return the engines of a revision that goes on which its conversations may still end.

    None once nothing is held there any more and nobody speaks there, or after the time that they have; and none from
    then on: that they are announced is itself a document that routers have yet to acknowledge.
    """
    ready = {role: [pod for pod in victims[role] if pod.ready] for role in Role}
    if not all(ready.values()):
        return ()
    stay = tuple(ready[role][-1] for role in Role)
    decode = stay[-1]
    over = all(pod.name in view.announced for pod in stay) or (view.acknowledged and all(map(view.idle, stay)))
    if decode.draining_since and (over or view.overdue(decode)):
        return ()
    return stay


def _mark(pod: Pod, view: _View, *, named: bool) -> Mark | None:
    if not pod.draining_since:
        return Mark(pod.name, pod.uid, view.stamp(pod))
    heard = named and pod.name in view.announced and view.acknowledged
    if not pod.doomed and heard and (view.idle(pod) or view.overdue(pod)):
        return Mark(pod.name, pod.uid, pod.draining_since, done=True)
    return None


def _words(pod: Pod, view: _View) -> str:
    load = view.load(pod)
    return f"{pod.name} ({load.legs} legs, {load.tokens} tokens held)"


def names(pods: Iterable[str], most: int = 3) -> str:
    """List a few, and say how many more there are."""
    each = list(pods)
    more = f" and {len(each) - most} more" if len(each) > most else ""
    return ", ".join(each[:most]) + more
