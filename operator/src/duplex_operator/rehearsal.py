"""A rehearsal of what the operator would do: its own planner, against a cluster in which every pod starts in its turn.

Nobody speaks there, so that engines which go are empty once routers have heard of it.

Nothing here decides: each step is what `plan` says of the state that the former steps led to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from duplex_connector.contract import ROLE_KIND, ROUTER, Label, Role
from duplex_operator.api import DisaggregatedServing
from duplex_operator.plan import (
    KEPT_KIND,
    ChildRef,
    Mark,
    Observed,
    Plan,
    Pod,
    RoleObject,
    RouterStats,
    Wanted,
    Workload,
    next_fleet,
    plan,
)
from duplex_operator.plan.fleet import version_of
from duplex_operator.render import (
    FleetRevision,
    RenderContext,
    fleet_document,
    fleet_name,
    render_serving,
    revision_of,
    router_url,
)

KubeObject = dict[str, Any]

MAX_STEPS: Final = 10_000
"""More than any rollout takes: one step per pod and role, and a few beside."""

_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_TERM: Final = 1


class EndlessError(Exception):
    """The planner does not come to rest, which is a defect of the planner."""


@dataclass(frozen=True, slots=True)
class RevisionState:
    """One revision at a step: (ready, wanted) engines of each role, and its share of new conversations in percent."""

    prefill: tuple[int, int]
    decode: tuple[int, int]
    weight: int


@dataclass(frozen=True, slots=True)
class Step:
    """What the operator writes at once, in words, and the revisions as they stand then."""

    actions: tuple[str, ...]
    revisions: Mapping[str, RevisionState]
    ready: str


@dataclass(slots=True)
class _Pod:
    name: str
    ready: bool = False
    since: str = ""
    doomed: bool = False


@dataclass(slots=True)
class _Deployment:
    """A Deployment with its pods, the oldest first."""

    role: str
    revision: str
    created: int
    pods: list[_Pod] = field(default_factory=list)
    made: int = 0

    @property
    def ready(self) -> int:
        return sum(pod.ready for pod in self.pods)

    def resize(self, name: str, number: int) -> None:
        """Make pods, or delete them as a ReplicaSet does: what is not ready, what costs least, what is youngest."""
        while len(self.pods) < number:
            self.made += 1
            self.pods.append(_Pod(f"{name}-{self.made}"))
        while len(self.pods) > number:
            self.pods.remove(min(reversed(self.pods), key=lambda pod: (pod.ready, not pod.doomed)))


@dataclass(slots=True)
class Cluster:
    """The cluster of the rehearsal: what the operator has written so far, and the pods that have started.

    ``asked``: what autoscalers will ask for, by role, once there is a ServingRole.
    """

    deployments: dict[str, _Deployment] = field(default_factory=dict)
    others: dict[tuple[str, str], str] = field(default_factory=dict)
    """Revision by kind and name of every other child."""
    kept: dict[str, tuple[KubeObject, ...]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    """What the ServingRoles say, by name."""
    asked: dict[str, int] = field(default_factory=dict)
    fleet: KubeObject | None = None
    status: KubeObject = field(default_factory=dict)
    ticks: int = 0

    def observed(self) -> Observed:
        """Return what the operator would see: routers that are ready have heard the document and tried its pairs."""
        pods = tuple(_pod(one, pod) for one in self.deployments.values() for pod in one.pods)
        routers = [pod.name for pod in pods if pod.role == ROUTER and pod.ready]
        served = dict.fromkeys(self._complete(), 1) if routers else {}
        heard = RouterStats(fleet_version=version_of(self.fleet), served_tokens=served)
        works = {name: _workload(name, one) for name, one in self.deployments.items()}
        return Observed(
            workloads=tuple(work for work in works.values() if work.role in tuple(Role)),
            router=next((work for work in works.values() if work.role == ROUTER), None),
            pods=pods,
            children=(
                *(ChildRef("Deployment", name, name, one.revision) for name, one in self.deployments.items()),
                *(ChildRef(kind, name, name, revision) for (kind, name), revision in self.others.items()),
            ),
            roles={
                name.rpartition("-")[2]: RoleObject(name, name, self.numbers.get(name))
                for kind, name in self.others
                if kind == ROLE_KIND
            },
            kept=dict(self.kept),
            fleet=self.fleet,
            stats=dict.fromkeys(routers, heard),
            status=self.status,
        )

    def _complete(self) -> set[str]:
        found: dict[str, set[str]] = {}
        for one in self.deployments.values():
            if one.ready:
                found.setdefault(one.revision, set()).add(one.role)
        return {name for name, roles in found.items() if roles >= set(Role)}

    def go_on(self) -> bool:
        """Let one more pod of each Deployment become ready, and autoscalers ask; tell whether anything happened."""
        self.ticks += 1
        waiting = [pods for one in self.deployments.values() if (pods := [pod for pod in one.pods if not pod.ready])]
        for pods in waiting:
            pods[0].ready = True
        found = [name for name in self.numbers if name.rpartition("-")[2] in self.asked]
        for name in found:
            self.numbers[name] = self.asked.pop(name.rpartition("-")[2])
        return bool(waiting or found)

    def write(self, decided: Plan, serving: DisaggregatedServing) -> list[str]:
        """Take over what was decided, and say in words what changed."""
        words = self._fleet_words(decided, serving)
        words += [self._mark(mark, serving) for mark in decided.marks]
        for obj in decided.apply:
            words += self._apply(obj)
        for scale in decided.scales:
            if scale.replicas is not None:
                self.numbers[scale.name] = scale.replicas
                words.append(f"set ServingRole {scale.name} to {scale.replicas}")
        for child in decided.delete:
            words.append(f"delete {child.kind} {child.name}")
            self._forget(child)
        self.status = decided.status
        return words

    def _fleet_words(self, decided: Plan, serving: DisaggregatedServing) -> list[str]:
        if decided.fleet is None:
            return []
        content = decided.fleet
        revisions = [FleetRevision(name, weight) for name, weight in content.revisions]
        before = self.fleet
        self.fleet, changed = next_fleet(
            before, _TERM, lambda version: fleet_document(serving, revisions, version, content.draining)
        )
        if not changed:
            return []
        if before is None:
            self.others["ConfigMap", fleet_name(serving.name)] = ""
        taking = " and ".join(name for name, weight in content.revisions if weight)
        known = " and ".join(name for name, _ in content.revisions)
        rest = f"; no new turns on {', '.join(content.draining)}" if content.draining else ""
        return [f"tell routers of {known}: new conversations begin on {taking or 'none'}{rest}"]

    def _mark(self, mark: Mark, serving: DisaggregatedServing) -> str:
        role, pod = next(
            (one.role, pod) for one in self.deployments.values() for pod in one.pods if pod.name == mark.pod
        )
        pod.since, pod.doomed = mark.since, mark.done
        if mark.done:
            return f"let pod {mark.pod} be deleted: nothing is left on it"
        if not mark.since:
            return f"keep pod {mark.pod} after all"
        seconds = getattr(serving.spec, role).drain_seconds
        return f"take pod {mark.pod} out of use: at most {seconds} s for what it holds"

    def _apply(self, obj: KubeObject) -> list[str]:
        kind, name = obj["kind"], obj["metadata"]["name"]
        revision = str(obj["metadata"]["labels"].get(Label.REVISION, ""))
        if kind == "Deployment":
            return self._scale(name, obj, revision)
        if kind == KEPT_KIND:
            self.kept[revision] = tuple(obj["data"]["engines"])
        new = (kind, name) not in self.others
        self.others[kind, name] = revision
        return [f"create {kind} {name}"] if new else []

    def _scale(self, name: str, obj: KubeObject, revision: str) -> list[str]:
        wanted = int(obj["spec"]["replicas"])
        known = self.deployments.get(name)
        if known is None:
            role = str(obj["metadata"]["labels"].get(Label.ROLE) or ROUTER)
            known = self.deployments[name] = _Deployment(role, revision, self.ticks)
            words = [f"create Deployment {name} with {wanted} pod(s)"]
        else:
            has = len(known.pods)
            words = [f"scale Deployment {name} from {has} to {wanted}"] if has != wanted else []
        known.resize(name, wanted)
        return words

    def _forget(self, child: ChildRef) -> None:
        if child.kind == "Deployment":
            del self.deployments[child.name]
            return
        revision = self.others.pop((child.kind, child.name))
        if child.kind == KEPT_KIND:
            del self.kept[revision]

    def revisions(self) -> dict[str, RevisionState]:
        """Return the revisions as they stand, the oldest first."""
        weights = {entry["name"]: int(entry["weight"]) for entry in (self.fleet or {}).get("revisions", ())}
        found: dict[str, RevisionState] = {}
        for one in sorted(self.deployments.values(), key=lambda each: each.created):
            if one.role == ROUTER:
                continue
            state = found.get(one.revision, RevisionState((0, 0), (0, 0), weights.get(one.revision, 0)))
            counts = (one.ready, len(one.pods))
            changed = {"prefill": counts} if one.role == Role.PREFILL else {"decode": counts}
            found[one.revision] = replace(state, **changed)  # type: ignore[arg-type] # counts of a role
        return found


def _pod(of: _Deployment, pod: _Pod) -> Pod:
    return Pod(
        name=pod.name,
        role=of.role,
        revision=of.revision,
        ip="192.0.2.1",
        ready=pod.ready,
        terminating=False,
        trouble=None,
        uid=pod.name,
        draining_since=pod.since,
        doomed=pod.doomed,
    )


def _workload(name: str, one: _Deployment) -> Workload:
    return Workload(
        name=name,
        role=one.role,
        revision=one.revision,
        created=(_BEGIN + timedelta(seconds=one.created)).isoformat(),
        replicas=len(one.pods),
        ready=one.ready,
        updated=len(one.pods),
        settled=True,
        refused="",
    )


def rehearse(serving: DisaggregatedServing, cluster: Cluster, context: RenderContext) -> Iterator[Step]:
    """Yield the steps to what a serving says, changing the cluster; the last one is at rest. Raises EndlessError."""
    wanted = Wanted(
        serving=serving,
        revision=revision_of(serving.spec),
        rendered=tuple(render_serving(serving, context)),
        fleet_name=fleet_name(serving.name),
        url=router_url(serving, context),
    )
    for _ in range(MAX_STEPS):
        decided = plan(wanted, cluster.observed(), _BEGIN + timedelta(seconds=cluster.ticks))
        actions = cluster.write(decided, serving)
        yield Step(tuple(actions), cluster.revisions(), _ready_words(decided.status))
        if not cluster.go_on() and not actions:
            return
    raise EndlessError(f"no rest after {MAX_STEPS} steps")


def _ready_words(status: KubeObject) -> str:
    condition: KubeObject = next((one for one in status["conditions"] if one["type"] == "Ready"), {})
    return f"{condition.get('status', 'Unknown')} ({condition.get('reason', '')})"
