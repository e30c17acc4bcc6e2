"""One decision for one serving: what to apply and delete, the fleet's content, status, events, when to look again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from duplex_connector.contract import Label, Role
from duplex_operator.api import ConditionType, DisaggregatedServing, Problem, Reason, Status, resolve
from duplex_operator.plan.conditions import Draft, EventDraft, merge_conditions, transitions
from duplex_operator.plan.drain import Drain, Mark, drain
from duplex_operator.plan.evacuation import room_of
from duplex_operator.plan.evidence import reuse_condition, transport_condition
from duplex_operator.plan.healing import Healing, Restart, heal
from duplex_operator.plan.observed import ChildRef, KubeObject, Observed, Workload
from duplex_operator.plan.pods import with_stuck
from duplex_operator.plan.progress import Progress, look
from duplex_operator.plan.rollout import FleetContent, Rollout, Target, roll
from duplex_operator.plan.scale import Scale, scales, wanted_sizes
from duplex_operator.plan.sizes import Sizes, bounds_of
from duplex_operator.plan.stats import Total, total
from duplex_operator.plan.status import (
    estimate_status,
    progressing_condition,
    ready_condition,
    replacement_condition,
    retention_status,
    reuse_status,
    role_condition,
    role_status,
    serving_revision,
    transport_status,
    tuning_status,
)

KEPT_KIND: Final = "ControllerRevision"
"""Kind of the objects that keep a revision's engine Deployments as they were first rendered."""

UNSTEADY_SECONDS: Final = 3.0
STEADY_SECONDS: Final = 30.0
STALLED_SECONDS: Final = 300.0


_OBSERVATIONS: Final = (
    ConditionType.PREFILL_READY,
    ConditionType.DECODE_READY,
    ConditionType.ROUTER_READY,
    ConditionType.TRANSPORT_VERIFIED,
    ConditionType.REUSE_EFFECTIVE,
    ConditionType.PROGRESSING,
)
"""Conditions that stay as they were last seen while nothing can be decided."""

_REASONS: Final = frozenset(reason.value for reason in Reason)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one serving now.

    ``apply`` in this order; ``fleet`` None leaves the document alone; ``requeue_after`` in seconds. ``restart`` comes
    after the status is written, which is what remembers it; ``marks`` of engine pods come before ``apply``, ``scales``
    of ServingRoles after it.
    """

    apply: tuple[KubeObject, ...]
    delete: tuple[ChildRef, ...]
    fleet: FleetContent | None
    status: KubeObject
    events: tuple[EventDraft, ...]
    requeue_after: float
    restart: Restart | None = None
    marks: tuple[Mark, ...] = ()
    scales: tuple[Scale, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The serving and what rendering made of it.

    ``rendered`` holds all children but the ConfigMap of the fleet document, which is called ``fleet_name``.
    """

    serving: DisaggregatedServing
    revision: str
    rendered: tuple[KubeObject, ...]
    fleet_name: str
    url: str


def plan(wanted: Wanted, observed: Observed, now: datetime) -> Plan:
    """Decide for a serving that ``validate`` found nothing wrong with."""
    serving = wanted.serving
    observed = replace(observed, pods=with_stuck(observed.pods, now))
    engines = [obj for obj in wanted.rendered if _is_engine(obj)]
    size = wanted_sizes(serving, observed)
    replicas = {role.value: getattr(size, role) for role in Role}
    progress = look(serving, wanted.revision, observed, now)
    bounds = bounds_of(serving.spec.rollout)
    target = Target(
        wanted.revision,
        size,
        bounds,
        suspended=serving.spec.suspend,
        held=progress.held,
    )
    rollout = roll(target, observed)
    seconds = {"prefill": serving.spec.prefill.drain_seconds, "decode": serving.spec.decode.drain_seconds}
    room = room_of(size, bounds)
    # A rollout that goes on takes engines off such nodes itself.
    settled = len({work.revision for work in observed.workloads}) <= 1 or progress.held
    drained = drain(rollout, observed, seconds, now, room if settled and not serving.spec.suspend else None)
    at_rest = drained.sizes == rollout.sizes and not drained.waiting and not drained.unreplaced
    rollout = replace(rollout, finished=rollout.finished and at_rest)
    newest = tuple(
        _resized(obj, drained.sizes[wanted.revision])
        for obj in _with_kept_pods(engines, observed.kept.get(wanted.revision, ()))
    )
    old = tuple(_resized(obj, size) for size, obj in _old_engines(wanted.revision, drained, observed))
    missing = room.missing if observed.sees_nodes else room.missing.most(Sizes(1, 1))
    rest = tuple(_budgeted(obj, missing) for obj in wanted.rendered if not _is_engine(obj))
    keeping = () if wanted.revision in observed.kept else (_keep(serving, wanted.revision, engines),)
    apply = (*keeping, *rest, *newest, *old)
    healing = heal(resolve(serving.spec).capability, observed, now)
    status, events, steady = _status(wanted, replicas, rollout, progress, healing, observed, drained=drained, now=now)
    return Plan(
        apply=apply,
        delete=_superfluous(wanted, apply, drained, observed.children),
        fleet=FleetContent(rollout.weights, drained.announced),
        status=status,
        events=tuple(events),
        requeue_after=STEADY_SECONDS if steady else UNSTEADY_SECONDS,
        restart=healing.restart,
        marks=drained.marks,
        scales=tuple(scales(serving, observed)),
    )


def plan_stalled(serving: DisaggregatedServing, problems: Sequence[Problem], observed: Observed, now: datetime) -> Plan:
    """Touch nothing that runs, and say what is wrong and what to do."""
    text = "; ".join(f"spec.{problem.field}: {problem.message}" for problem in problems)
    return stalled(serving.metadata.generation, Reason.INVALID_SPEC, text, observed.status, now)


def stalled(generation: int, reason: Reason, text: str, status: KubeObject, now: datetime) -> Plan:
    """Report a state that waiting does not end. The rest of the status stays as it was."""
    former = status.get("conditions") or []
    stays = [
        Draft(ConditionType(one["type"]), _holds(one["status"]), Reason(one["reason"]), one["message"])
        for one in former
        if one["type"] in _OBSERVATIONS and one["reason"] in _REASONS
    ]
    known = {draft.type for draft in stays}
    stays += [
        Draft(kind, None, Reason.UNKNOWN, "not looked at while Stalled") for kind in _OBSERVATIONS if kind not in known
    ]
    served = next((one for one in former if one["type"] == ConditionType.READY and one["status"] == "True"), None)
    ready = (
        Draft(ConditionType.READY, True, Reason.SERVING, "the former spec goes on serving; see Stalled")
        if served
        else Draft(ConditionType.READY, False, reason, text)
    )
    drafts = [*stays, ready, Draft(ConditionType.STALLED, True, reason, text)]
    conditions = merge_conditions(former, drafts, generation, _time(now))
    rest = {key: value for key, value in status.items() if key != "conditions"}
    after = {**rest, "observedGeneration": generation, "conditions": conditions}
    return Plan((), (), None, after, tuple(transitions(former, conditions)), STALLED_SECONDS)


def _status(  # noqa: PLR0917 - all that was decided goes into the status
    wanted: Wanted,
    replicas: Mapping[str, int],
    rollout: Rollout,
    progress: Progress,
    healing: Healing,
    observed: Observed,
    *,
    drained: Drain,
    now: datetime,
) -> tuple[KubeObject, list[EventDraft], bool]:
    serving = wanted.serving
    suspended = serving.spec.suspend
    resolved = resolve(serving.spec)
    counts = total(observed.stats[name] for name in sorted(observed.stats))
    routers = 0 if suspended else serving.spec.router.replicas
    parts = _parts(wanted.revision, replicas, routers, observed)
    ready = ready_condition(rollout, parts, counts, suspended=suspended)
    # An autoscaler may ask for none: then there is nothing to wait for either.
    none_wanted = not all(replicas.values())
    steady = rollout.finished and (suspended or ((ready.holds or none_wanted) and parts["router"].holds is True))
    stopped = progress.stalled and not rollout.finished
    progressing = replacement_condition(drained, observed, progress) or progressing_condition(
        wanted.revision, rollout, progress, parts, drained=drained, observed=observed, suspended=suspended
    )
    runs = serving_revision(rollout, counts) or next(iter(rollout.able), wanted.revision)
    transport = transport_condition(resolved, runs, counts, observed, healing.stale)
    drafts = [
        ready,
        *parts.values(),
        transport,
        reuse_condition(resolved, runs, counts),
        progressing,
        Draft(ConditionType.RECONCILING, not steady and not stopped, progressing.reason, progressing.message),
        Draft(ConditionType.STALLED, stopped, progressing.reason, progressing.message),
    ]
    former = observed.status.get("conditions") or []
    conditions = merge_conditions(former, drafts, serving.metadata.generation, _time(now))
    sizes = {**replicas, "router": routers}
    roles = {role: role_status(role, size, wanted.revision, observed) for role, size in sizes.items()}
    status = Status(
        observed_generation=serving.metadata.generation,
        url=wanted.url,
        revision=serving_revision(rollout, counts) or _known_to_serve(rollout, counts, observed),
        update_revision=wanted.revision,
        prefill=roles["prefill"],
        decode=roles["decode"],
        router=roles["router"],
        transport=transport_status(resolved, counts, transport),
        reuse=reuse_status(counts),
        retention=retention_status(serving, counts),
        tuning=tuning_status(serving),
        estimate=estimate_status(serving, counts),
        healing=healing.status,
        rollout=None if rollout.finished else progress.status(rollout),
    )
    dumped: KubeObject = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    events = transitions(former, conditions)
    if healing.restart is not None:
        events.append(EventDraft(warning=True, reason="EngineRestarted", message=healing.restart.why))
    return {**dumped, "conditions": conditions}, events, steady


def _known_to_serve(rollout: Rollout, counts: Total, observed: Observed) -> str | None:
    """Return the revision that served last, while routers have nothing to say: a lost answer undoes no proof."""
    former = observed.status.get("revision")
    silent = not any(counts.served_tokens.get(name) for name in rollout.able)
    return former if silent and former in rollout.able else None


def _parts(revision: str, replicas: Mapping[str, int], routers: int, observed: Observed) -> dict[str, Draft]:
    works: dict[str, Workload | None] = {work.role: work for work in observed.workloads if work.revision == revision}
    kinds = {
        "prefill": (ConditionType.PREFILL_READY, replicas["prefill"], works.get("prefill")),
        "decode": (ConditionType.DECODE_READY, replicas["decode"], works.get("decode")),
        "router": (ConditionType.ROUTER_READY, routers, observed.router),
    }
    return {role: role_condition(kind, role, size, work, observed) for role, (kind, size, work) in kinds.items()}


def _is_engine(obj: KubeObject) -> bool:
    return obj["kind"] == "Deployment" and _role(obj) in tuple(Role)


def _role(obj: KubeObject) -> str:
    return str(obj["metadata"]["labels"].get(Label.ROLE, ""))


def _with_kept_pods(engines: Sequence[KubeObject], kept: Sequence[KubeObject]) -> tuple[KubeObject, ...]:
    """Give engines the pod templates that their revision began with.

    An operator with other images or other code renders other templates for the same revision: it must not restart
    engines, which would throw their KV away.
    """
    templates = {_role(obj): obj["spec"]["template"] for obj in kept}
    specs = [{**obj["spec"], "template": templates.get(_role(obj), obj["spec"]["template"])} for obj in engines]
    return tuple({**obj, "spec": spec} for obj, spec in zip(engines, specs, strict=True))


def _without_size(obj: KubeObject) -> KubeObject:
    return {**obj, "spec": {key: value for key, value in obj["spec"].items() if key != "replicas"}}


def _resized(obj: KubeObject, size: Sizes) -> KubeObject:
    return {**obj, "spec": {**obj["spec"], "replicas": getattr(size, _role(obj))}}


def _budgeted(obj: KubeObject, missing: Sizes) -> KubeObject:
    """Let evictions take what a rollout might leave missing; the operator empties engines before, where it sees nodes.

    Where it does not, one at a time must be let go, or no node could ever be drained.
    """
    if obj["kind"] != "PodDisruptionBudget":
        return obj
    return {**obj, "spec": {**obj["spec"], "maxUnavailable": getattr(missing, _role(obj))}}


def _old_engines(wanted: str, drained: Drain, observed: Observed) -> Iterable[tuple[Sizes, KubeObject]]:
    """Yield what was kept of each old revision that stays, with its sizes."""
    for name, size in sorted(drained.sizes.items()):
        if name != wanted:
            for obj in observed.kept.get(name, ()):
                yield size, obj


def _keep(serving: DisaggregatedServing, revision: str, engines: Sequence[KubeObject]) -> KubeObject:
    """Make the object that keeps a revision's engine Deployments. Owner and labels are those of the Deployments."""
    metadata: dict[str, Any] = engines[0]["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key not in (Label.ROLE, Label.COMPONENT)}
    return {
        "apiVersion": "apps/v1",
        "kind": KEPT_KIND,
        "metadata": {**metadata, "name": f"{serving.name}-{revision}", "labels": labels},
        # Revisions of a serving are told apart by name; this number is only required.
        "revision": 1,
        # Without the size, which is not the revision's: the same revision is kept in the same words whenever it begins.
        "data": {"engines": [_without_size(obj) for obj in engines]},
    }


def _superfluous(
    wanted: Wanted, apply: Iterable[KubeObject], drained: Drain, children: Iterable[ChildRef]
) -> tuple[ChildRef, ...]:
    """Return what the serving owns and neither wants nor keeps, in an order that does not depend on the input's."""
    named = {(obj["kind"], obj["metadata"]["name"]) for obj in apply} | {("ConfigMap", wanted.fleet_name)}
    stays = set(drained.sizes)
    return tuple(
        sorted(
            (
                child
                for child in children
                if (child.kind, child.name) not in named and not (child.revision and child.revision in stays)
            ),
            key=lambda child: (child.kind, child.name),
        )
    )


def _holds(status: str) -> bool | None:
    return {"True": True, "False": False}.get(status)


def _time(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
