"""One serving, once: look, decide, write. Run again after any change, it ends in the same state from any other."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from duplex_kube.api import KubeObject
from duplex_kube.errors import ForbiddenError, InvalidError
from duplex_operator.api import DisaggregatedServing, Reason, validate
from duplex_operator.plan import (
    FleetContent,
    Observed,
    Plan,
    Pod,
    RouterStats,
    Wanted,
    next_fleet,
    plan,
    plan_stalled,
    stalled,
)
from duplex_operator.plan.decide import STEADY_SECONDS, UNSTEADY_SECONDS
from duplex_operator.plan.fleet import version_of
from duplex_operator.reconcile.children import Child, ChildName, Children
from duplex_operator.reconcile.observe import fleet_of, observe
from duplex_operator.reconcile.router_stats import RouterStatsCache
from duplex_operator.reconcile.servings import Key, Servings
from duplex_operator.reconcile.writer import NotOursError, Writer
from duplex_operator.render import (
    FleetRevision,
    RenderContext,
    fleet_document,
    fleet_name,
    render_fleet,
    render_serving,
    revision_of,
    router_url,
)
from duplex_operator.runtime.clock import Clock

FULL_LOOK_SECONDS = 1800.0
"""A serving at which nothing has changed is decided on anew so often, for whatever depends on time alone."""

LOOKS_PER_SECOND = 8.0
"""Most steady servings that are looked at in a second: with many, each is later, and the cost stays (240 at 30 s)."""

PATIENCE = 0.1
"""A serving that does not get on is looked at after this part of the time that it has stood still."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """All that a steady serving was decided from. ``at``: when."""

    at: float
    version: str
    children: Mapping[ChildName, Child]
    pods: tuple[Pod, ...]
    stats: Mapping[str, RouterStats]

    def same(self, other: "_Seen") -> bool:
        """Tell whether nothing has changed; cheap, since the caches replace what changes and keep the rest."""
        mine = (self.version, self.children, self.pods, self.stats)
        return mine == (other.version, other.children, other.pods, other.stats)


@dataclass
class _Fleet:
    """The newest fleet document of a serving that this process knows to be written, and since when."""

    document: KubeObject
    since: float


class Reconciler:
    """Reconciles servings from the caches. ``term`` is the leader's; it goes into the fleet documents."""

    def __init__(
        self,
        *,
        servings: Servings,
        children: Children,
        stats: RouterStatsCache,
        writer: Writer,
        context: RenderContext,
        clock: Clock,
        term: int,
    ) -> None:
        self._servings = servings
        self._children = children
        self._stats = stats
        self._writer = writer
        self._context = context
        self._clock = clock
        self._term = term
        self._fleets: dict[Key, _Fleet] = {}
        self._steady: dict[Key, _Seen] = {}
        self._unsteady: dict[Key, _Seen] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Bring one serving nearer to what its spec says; return when to look again, None if it is gone.

        Raises ``KubeError`` where trying again may help; what waiting does not end is written into the status.
        """
        obj = self._servings.get(key)
        if obj is None or "deletionTimestamp" in obj["metadata"]:
            self._forget(key)
            return None
        seen = await self._look(key, obj)
        known = self._steady.get(key)
        if known is not None and seen.at - known.at < FULL_LOOK_SECONDS and seen.same(known):
            return self._rest()
        try:
            decided = await self._decide_and_apply(key, obj, seen)
        except (InvalidError, NotOursError) as error:
            decided = self._stalled(obj, Reason.REFUSED_BY_API_SERVER, str(error))
        except ForbiddenError as error:
            decided = self._stalled(obj, Reason.FORBIDDEN, str(error))
        edited = await self._report(obj, decided)
        if decided.restart is not None:
            await self._writer.restart(obj, decided.restart)
        pause = self._pause(key, seen, decided.requeue_after)
        return 0.0 if edited else pause

    def _rest(self) -> float:
        return max(STEADY_SECONDS, len(self._servings) / LOOKS_PER_SECOND)

    def _pause(self, key: Key, seen: _Seen, least: float) -> float:
        """Return when to look again at what was decided on: soon as long as anything happens, then later and later."""
        if least == STEADY_SECONDS:
            self._steady[key] = seen
            self._unsteady.pop(key, None)
            return self._rest()
        self._steady.pop(key, None)
        first = self._unsteady.get(key)
        if first is None or not first.same(seen):
            first = self._unsteady[key] = seen
        return max(least, min(PATIENCE * (seen.at - first.at), STEADY_SECONDS))

    async def _look(self, key: Key, obj: KubeObject) -> _Seen:
        pods = self._children.pods_of(key)
        oldest = self._rest() if key in self._steady else UNSTEADY_SECONDS
        stats = await self._stats.of(key, pods, oldest=oldest * 0.9)
        version = obj["metadata"].get("resourceVersion", "")
        return _Seen(self._clock.now(), version, dict(self._children.of(key)), pods, stats)

    async def _decide_and_apply(self, key: Key, obj: KubeObject, seen: _Seen) -> Plan:
        now = self._clock.wall()
        try:
            serving = DisaggregatedServing.model_validate(obj)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            text = f"{field}: {first['msg']}; the CRD and the operator are of different releases: upgrade both"
            return stalled(obj["metadata"]["generation"], Reason.INVALID_SPEC, text, obj.get("status") or {}, now)
        named = self._children.of(key)  # alive: what is written meanwhile shows
        owned = {name: child for name, child in named.items() if child.owner == serving.metadata.uid}
        observed = self._observe(key, obj, owned, seen)
        problems = validate(serving.spec)
        if problems:
            return plan_stalled(serving, problems, observed, now)
        wanted = Wanted(
            serving=serving,
            revision=revision_of(serving.spec),
            rendered=tuple(render_serving(serving, self._context)),
            fleet_name=fleet_name(serving.name),
            url=router_url(serving, self._context),
        )
        decided = plan(wanted, observed, now)
        await self._apply(key, obj, serving, decided, named)
        return decided

    def _observe(self, key: Key, obj: KubeObject, owned: dict[ChildName, Child], seen: _Seen) -> Observed:
        fleet = self._newest_fleet(key, fleet_of(key[1], owned.values()))
        return observe(
            owned.values(),
            seen.pods,
            obj.get("status") or {},
            fleet=fleet.document if fleet else None,
            fleet_age=self._clock.now() - fleet.since if fleet else 0.0,
            stats=seen.stats,
            sees_nodes=self._children.sees_nodes,
        )

    def _newest_fleet(self, key: Key, seen: KubeObject | None) -> _Fleet | None:
        """Return the newer of what the watch shows and what was written last, which the watch may not show yet."""
        known = self._fleets.get(key)
        if seen is not None and (known is None or version_of(seen) > version_of(known.document)):
            known = self._fleets[key] = _Fleet(seen, self._clock.now())
        return known

    async def _apply(
        self,
        key: Key,
        obj: KubeObject,
        serving: DisaggregatedServing,
        decided: Plan,
        named: Mapping[ChildName, Child],
    ) -> None:
        if decided.fleet is not None:
            await self._apply_fleet(key, obj, serving, decided.fleet, named)
        for mark in decided.marks:
            await self._writer.mark(obj, mark)
        for child in decided.apply:
            await self._writer.apply(obj, child, named)
        for scale in decided.scales:
            await self._writer.scale(obj, scale, named)
        for child_ref in decided.delete:
            await self._writer.delete(obj, child_ref)

    async def _apply_fleet(
        self,
        key: Key,
        obj: KubeObject,
        serving: DisaggregatedServing,
        content: FleetContent,
        named: Mapping[ChildName, Child],
    ) -> None:
        revisions = [FleetRevision(name, weight) for name, weight in content.revisions]
        known = self._fleets.get(key)
        document, changed = next_fleet(
            known.document if known else None,
            self._term,
            lambda version: fleet_document(serving, revisions, version, content.draining),
        )
        version = version_of(document)
        await self._writer.apply(obj, render_fleet(serving, revisions, version, content.draining), named)
        if changed:
            self._fleets[key] = _Fleet(document, self._clock.now())

    async def _report(self, obj: KubeObject, decided: Plan) -> bool:
        """Write the status and events; tell whether the answer shows an edit that the decision did not know of.

        What an answer has shown is no news when the watch brings it: nobody else would ask for this serving.
        """
        answer = await self._writer.write_status(obj, decided.status)
        edited = self._servings.put(answer)
        for event in decided.events:
            await self._writer.post(obj, event)
        return edited

    def _stalled(self, obj: KubeObject, reason: Reason, text: str) -> Plan:
        generation = obj["metadata"]["generation"]
        return stalled(generation, reason, text, obj.get("status") or {}, self._clock.wall())

    def _forget(self, key: Key) -> None:
        self._fleets.pop(key, None)
        self._steady.pop(key, None)
        self._unsteady.pop(key, None)
        self._stats.forget(key)
        self._writer.forget(key)
