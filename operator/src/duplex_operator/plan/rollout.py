"""Which revisions run, at what size, and which of them routers may use: always one pair that can serve, if any can.

A change of the engines is a new revision with Deployments of its own, beside the old ones. The steps:
1. the new revision comes up at the size that the bounds allow; routers know both, and start no conversation on it yet;
2. once the new one has a ready prefill and a ready decode, and a token has come through it (the routers' canary),
   routers are told to start conversations on both, each according to its capacity;
3. once the routers say that they have heard (or after a bound), the old ones shrink as the new one grows (`sizes`);
4. what has shrunk to nothing is deleted.
Until 2, nothing is taken from an old revision that can serve but what the bounds allow: an image that never starts, or
starts and cannot serve, harms nobody.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from duplex_operator.plan.fleet import version_of
from duplex_operator.plan.observed import KubeObject, Observed, Workload
from duplex_operator.plan.pods import HOPELESS
from duplex_operator.plan.sizes import Bounds, Sizes, Standing, capacity, next_sizes

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
class Target:
    """Where a rollout leads: a revision and its size, within bounds. ``held``: it is paused, or has stalled."""

    revision: str
    size: Sizes
    bounds: Bounds
    suspended: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Rollout:
    """One decision about all revisions of a serving.

    ``sizes``: of every revision that stays, the wanted one among them. ``able``: revisions with a ready pair, the
    wanted one first, then the newest. ``finished``: only the wanted revision is left, at its size.
    """

    fleet: FleetContent
    sizes: Mapping[str, Sizes]
    able: tuple[str, ...]
    finished: bool


def roll(target: Target, observed: Observed) -> Rollout:
    """Decide the next step towards the target."""
    wanted = target.revision
    revisions = _by_revision(observed.workloads)
    draining = tuple(sorted(pod.name for pod in observed.pods if pod.role == "decode" and pod.terminating))
    new = _standing(wanted, revisions.pop(wanted, {}))
    if target.suspended:
        content = FleetContent(((wanted, FULL),), draining)
        return Rollout(content, {wanted: Sizes()}, (), finished=not revisions)
    old = _worth_keeping(revisions)
    able = tuple(one.name for one in old if one.ready.pair)
    proved = new.ready.pair and (not able or _proved(wanted, observed))
    next_ones = next_sizes(
        target.size,
        target.bounds,
        new,
        old,
        proved=proved,
        held=target.held,
        old_grows=any(
            pod.trouble and pod.trouble.reason in HOPELESS for pod in observed.pods if pod.revision == wanted
        ),
        leaving=leaving(observed, wanted),
    )
    content = FleetContent(_weights(target.size, new, old, next_ones, proved=proved), draining)
    sizes = {one.name: next_ones[one.name] for one in old}
    if not _heard(observed, content):
        sizes = {one.name: one.size.most(sizes[one.name]) for one in old}
    # A revision without an engine left has no pod to wait for but terminating ones, which end by themselves.
    sizes = {wanted: next_ones[wanted]} | {name: size for name, size in sizes.items() if size}
    works = [work for work in observed.workloads if work.revision == wanted]
    at_size = len(works) == len(ROLES) and all(
        work.settled and work.ready >= getattr(target.size, work.role) for work in works
    )
    present = (wanted, *able) if new.ready.pair else able
    return Rollout(content, sizes, present, finished=not revisions and at_size and sizes[wanted] == target.size)


def leaving(observed: Observed, wanted: str) -> Sizes:
    """Count the terminating engines of other revisions than the wanted one: their devices are not free yet."""
    roles = [pod.role for pod in observed.pods if pod.terminating and pod.revision not in ("", wanted)]
    return Sizes(roles.count("prefill"), roles.count("decode"))


def _by_revision(workloads: Iterable[Workload]) -> dict[str, dict[str, Workload]]:
    found: dict[str, dict[str, Workload]] = {}
    for work in workloads:
        found.setdefault(work.revision, {})[work.role] = work
    return found


def _standing(name: str, roles: Mapping[str, Workload]) -> Standing:
    size = Sizes(**{role: work.replicas for role, work in roles.items()})
    return Standing(name, size, Sizes(**{role: work.ready for role, work in roles.items()}))


def _created(roles: Mapping[str, Workload]) -> str:
    return min((work.created for work in roles.values()), default="")


def _worth_keeping(old: Mapping[str, Mapping[str, Workload]]) -> list[Standing]:
    """Return the old revisions that can serve, the newest first.

    Where none can just now, the oldest: it served before the others.
    """
    ordered = sorted(old, key=lambda name: (_created(old[name]), name), reverse=True)
    found = [_standing(name, old[name]) for name in ordered]
    return [one for one in found if one.ready.pair] or found[-1:]


def _weights(
    target: Sizes, new: Standing, old: Sequence[Standing], sizes: Mapping[str, Sizes], *, proved: bool
) -> tuple[tuple[str, int], ...]:
    """Return the shares of new conversations in percent: by the capacity that each has after this step."""
    stays = {one.name: capacity(one.ready.least(sizes[one.name]), target) for one in old}
    if not proved:
        serving = next((one.name for one in old if one.ready.pair), None)
        others = {one.name: FULL if one.name == serving else 0 for one in old}
    else:
        whole = capacity(new.ready, target) + sum(stays.values())
        others = {name: int(FULL * units / whole) if whole else 0 for name, units in stays.items()}
    # No conversation begins on engines that are all about to go.
    rest = FULL - sum(others.values())
    return ((new.name, rest), *sorted(others.items()))


def _ready_routers(observed: Observed) -> list[str]:
    return [pod.name for pod in observed.pods if pod.role == "router" and pod.ready and not pod.terminating]


def _proved(revision: str, observed: Observed) -> bool:
    """Tell whether a token has come through the revision. Where no router runs, its ready pods must do."""
    served = any(stats.served_tokens.get(revision) for stats in observed.stats.values())
    return served or not _ready_routers(observed)


def _heard(observed: Observed, content: FleetContent) -> bool:
    """Tell whether the routers know where conversations may start from now on.

    The document that is written must say so, and every ready router must have applied it. A router that is not ready
    counts as none; one that does not answer is waited for within the bound.
    """
    if observed.fleet is None or weights_of(observed.fleet) != dict(content.revisions):
        return False
    if observed.fleet_age >= ACKNOWLEDGE_SECONDS:
        return True
    version = version_of(observed.fleet)
    return all(
        name in observed.stats and observed.stats[name].fleet_version >= version for name in _ready_routers(observed)
    )


def weights_of(fleet: KubeObject) -> dict[str, int]:
    """Return the weights of a written fleet document by revision."""
    return {str(entry["name"]): int(entry["weight"]) for entry in fleet["revisions"]}
