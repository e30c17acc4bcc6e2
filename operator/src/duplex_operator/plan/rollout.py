"""Which revisions run, at what size, and which of them routers may use: always one pair that can serve, if any can.

A change of the engines is a new revision with Deployments of its own, beside the old ones. The steps:
1. the new revision comes up at its full size; routers know both, and start no conversation on the new one yet;
2. once the new one has a ready prefill and a ready decode, and a token has come through it (the routers' canary),
   routers are told to start conversations on it, and none on the old ones;
3. once the routers say that they have heard (or after a bound), the old ones shrink as the new one grows, so that the
   sum does not fall below the wanted size and one spare engine of each role is enough to get through;
4. what has shrunk to nothing is deleted.
Until 2, nothing is taken from an old revision that can serve: an image that never starts, or starts and cannot serve,
harms nobody.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from duplex_operator.plan.fleet import version_of
from duplex_operator.plan.observed import KubeObject, Observed, Workload

ACKNOWLEDGE_SECONDS: Final = 60.0
"""How long routers that do not acknowledge a fleet document may hold a rollout up."""

FULL: Final = 100

ROLES: Final = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class FleetContent:
    """What the fleet document says about revisions and pods. ``revisions``: names and weights, the wanted one first."""

    revisions: tuple[tuple[str, int], ...]
    draining: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One decision about all revisions of a serving.

    ``sizes``: replicas by role of every old revision that stays. ``able``: revisions with a ready pair, the wanted one
    first, then the newest. ``finished``: only the wanted revision is left, at its size.
    """

    fleet: FleetContent
    sizes: Mapping[str, Mapping[str, int]]
    able: tuple[str, ...]
    finished: bool


def roll(wanted: str, replicas: Mapping[str, int], observed: Observed, *, suspended: bool) -> Rollout:
    """Decide the next step towards ``wanted`` (a revision) with ``replicas`` engines of each role."""
    revisions = _by_revision(observed.workloads)
    draining = tuple(sorted(pod.name for pod in observed.pods if pod.role == "decode" and pod.terminating))
    new = revisions.pop(wanted, {})
    if suspended:
        return Rollout(FleetContent(((wanted, FULL),), draining), {}, (), finished=not revisions)
    keep = _worth_keeping(revisions)
    old = {name: roles for name, roles in revisions.items() if name in keep}
    able = [
        name for name in sorted(old, key=lambda name: (_created(old[name]), name), reverse=True) if _has_pair(old[name])
    ]
    taken_over = _has_pair(new) and (not able or _proved(wanted, observed))
    weights = {name: FULL if not taken_over and name == next(iter(able), None) else 0 for name in old}
    content = FleetContent(((wanted, 0 if any(weights.values()) else FULL), *sorted(weights.items())), draining)
    sizes = {name: {role: work.replicas for role, work in roles.items()} for name, roles in old.items()}
    if taken_over and _heard(observed, old):
        sizes = {name: _shrunk(roles, replicas, new) for name, roles in old.items()}
    # A revision without a replica left has no pod to wait for but terminating ones, which end by themselves.
    sizes = {name: roles for name, roles in sizes.items() if any(roles.values())}
    at_size = all(role in new and new[role].settled and new[role].ready >= replicas[role] for role in ROLES)
    present = (wanted, *able) if _has_pair(new) else tuple(able)
    return Rollout(content, sizes, present, finished=not revisions and at_size)


def _by_revision(workloads: Iterable[Workload]) -> dict[str, dict[str, Workload]]:
    found: dict[str, dict[str, Workload]] = {}
    for work in workloads:
        found.setdefault(work.revision, {})[work.role] = work
    return found


def _has_pair(roles: Mapping[str, Workload]) -> bool:
    return all(role in roles and roles[role].ready > 0 for role in ROLES)


def _created(roles: Mapping[str, Workload]) -> str:
    return min((work.created for work in roles.values()), default="")


def _worth_keeping(old: Mapping[str, Mapping[str, Workload]]) -> frozenset[str]:
    """Return the old revisions that can serve; where none can just now, the oldest: it served before the others."""
    able = frozenset(name for name, roles in old.items() if _has_pair(roles))
    if able or not old:
        return able
    return frozenset({min(old, key=lambda name: (_created(old[name]), name))})


def _ready_routers(observed: Observed) -> list[str]:
    return [pod.name for pod in observed.pods if pod.role == "router" and pod.ready and not pod.terminating]


def _proved(revision: str, observed: Observed) -> bool:
    """Tell whether a token has come through the revision. Where no router runs, its ready pods must do."""
    served = any(stats.served_tokens.get(revision) for stats in observed.stats.values())
    return served or not _ready_routers(observed)


def _heard(observed: Observed, old: Mapping[str, object]) -> bool:
    """Tell whether the routers know that no conversation may start on the old revisions.

    The document that is written must say so, and every ready router must have applied it. A router that is not ready
    counts as none; one that does not answer is waited for within the bound.
    """
    if observed.fleet is None or any(_weight(observed.fleet, name) for name in old):
        return False
    if observed.fleet_age >= ACKNOWLEDGE_SECONDS:
        return True
    version = version_of(observed.fleet)
    return all(
        name in observed.stats and observed.stats[name].fleet_version >= version for name in _ready_routers(observed)
    )


def _weight(fleet: KubeObject, name: str) -> int:
    return next((int(entry["weight"]) for entry in fleet["revisions"] if entry["name"] == name), 0)


def _shrunk(roles: Mapping[str, Workload], replicas: Mapping[str, int], new: Mapping[str, Workload]) -> dict[str, int]:
    return {role: min(work.replicas, max(0, replicas[role] - new[role].ready)) for role, work in roles.items()}
