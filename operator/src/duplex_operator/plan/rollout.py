"""Which revisions run, at what size, and which of them routers may use: always one pair that can serve, if any can.

A change of the engines is a new revision with Deployments of its own, beside the old ones. The steps:
1. the new revision comes up at the size that the bounds allow; routers know both, and start no conversation on it yet;
2. once the new one has a ready prefill and a ready decode, and a token has come through it (the routers' canary),
   routers are told to start conversations on both, each according to its capacity;
3. the old ones shrink as the new one grows (`sizes`): what goes is emptied first (`drain`);
4. what has shrunk to nothing is deleted.
Until 2, nothing is taken from an old revision that can serve but what the bounds allow: an image that never starts, or
starts and cannot serve, harms nobody.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from duplex_operator.plan.fleet import ready_routers
from duplex_operator.plan.observed import Observed, Workload
from duplex_operator.plan.pods import HOPELESS
from duplex_operator.plan.sizes import Bounds, Sizes, Standing, capacity, next_sizes

FULL: Final = 100

ROLES: Final = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class FleetContent:
    """What the fleet document says about revisions and pods. ``revisions``: names and weights, the wanted one first."""

    revisions: tuple[tuple[str, int], ...]
    draining: tuple[str, ...] = ()


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

    ``weights``: shares of new conversations in percent, the wanted revision's first. ``sizes``: of every revision that
    is to stay, the wanted one among them. ``able``: revisions with a ready pair, the
    wanted one first, then the newest. ``finished``: only the wanted revision is left, at its size.
    """

    weights: tuple[tuple[str, int], ...]
    sizes: Mapping[str, Sizes]
    able: tuple[str, ...]
    finished: bool


def roll(target: Target, observed: Observed) -> Rollout:
    """Decide the next step towards the target."""
    wanted = target.revision
    revisions = _by_revision(observed.workloads)
    new = _standing(wanted, revisions.pop(wanted, {}))
    if target.suspended:
        # Turns under way end first: routers stop taking new ones and go once they have none.
        staying = [new, *(_standing(name, roles) for name, roles in revisions.items())] if _routers(observed) else []
        sizes = {wanted: Sizes()} | {one.name: one.size for one in staying}
        return Rollout(((wanted, FULL),), sizes, (), finished=not revisions and not new.size)
    served = served_revisions(observed)
    old = _worth_keeping(revisions, served, _shares(observed))
    able = tuple(one.name for one in old if one.ready.pair)
    # One that has served and just now does not answer its probes may come back: it is nobody's to take yet.
    alone = not any(one.ready.pair or one.name in served for one in old)
    proved = new.ready.pair and (alone or wanted in served or not ready_routers(observed))
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
    weights = _weights(target.size, new, old, next_ones, proved=proved, serving=served | _shares(observed))
    sizes = {one.name: next_ones[one.name] for one in old}
    # A revision without an engine left has no pod to wait for but terminating ones, which end by themselves.
    sizes = {wanted: next_ones[wanted]} | {name: size for name, size in sizes.items() if size}
    works = [work for work in observed.workloads if work.revision == wanted]
    at_size = len(works) == len(ROLES) and all(
        work.settled and work.ready >= getattr(target.size, work.role) for work in works
    )
    present = (wanted, *able) if new.ready.pair else able
    return Rollout(weights, sizes, present, finished=not revisions and at_size and new.size == target.size)


def leaving(observed: Observed, wanted: str) -> Sizes:
    """Count the terminating engines of other revisions than the wanted one: their devices are not free yet.

    Those that are stuck have none that anybody could wait for.
    """
    going = [pod for pod in observed.pods if pod.terminating and not pod.stuck]
    roles = [pod.role for pod in going if pod.revision not in ("", wanted)]
    return Sizes(roles.count("prefill"), roles.count("decode"))


def _routers(observed: Observed) -> bool:
    return any(pod.role == "router" and not pod.stuck for pod in observed.pods)


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


def _worth_keeping(
    old: Mapping[str, Mapping[str, Workload]], served: AbstractSet[str], sharing: AbstractSet[str]
) -> list[Standing]:
    """Return the old revisions that can serve or have served: first those that have, of those the newest.

    One that is ready and through which no token came is no match for one that serves clients. Where none can just
    now, the oldest: it served before the others. ``sharing``: those that new conversations may begin on.
    """
    ordered = sorted(old, key=lambda name: (name in served, name in sharing, _created(old[name]), name), reverse=True)
    found = [_standing(name, old[name]) for name in ordered]
    keeping = [one for one in found if one.ready.pair or one.name in served]
    return keeping or sorted(found, key=lambda one: (_created(old[one.name]), one.name))[:1]


def _weights(
    target: Sizes,
    new: Standing,
    old: Sequence[Standing],
    sizes: Mapping[str, Sizes],
    *,
    proved: bool,
    serving: AbstractSet[str],
) -> tuple[tuple[str, int], ...]:
    """Return the shares of new conversations in percent: by the capacity that each has after this step.

    Before the new one is proved it has none, and old ones only those that are ``serving``.
    """
    stays = {one.name: capacity(one.ready.least(sizes[one.name]), target) for one in old}
    if not proved:
        stays = {name: units if name in serving else Fraction(0) for name, units in stays.items()}
    whole = sum(stays.values()) + (capacity(new.ready, target) if proved else 0)
    if whole:
        others = {name: int(FULL * units / whole) for name, units in stays.items()}
    else:
        first = next((one.name for one in old if one.ready.pair), None) if not proved else None
        others = {one.name: FULL if one.name == first else 0 for one in old}
    # No conversation begins on engines that are all about to go.
    rest = FULL - sum(others.values())
    if whole and not proved:
        # What rounding leaves over is the first one's, not the new one's.
        others[next(name for name, units in stays.items() if units)] += rest
        rest = 0
    return ((new.name, rest), *sorted(others.items()))


def served_revisions(observed: Observed) -> frozenset[str]:
    """Return the revisions through which a token has come, by what routers say and by what was last known of it.

    Routers count since their start: while none says anything, the status remembers one.
    """
    told = {name for stats in observed.stats.values() for name, tokens in stats.served_tokens.items() if tokens}
    return frozenset(told | {str(observed.status.get("revision") or "")} - {""})


def _shares(observed: Observed) -> frozenset[str]:
    """Return the revisions that new conversations may begin on, by the fleet document that is written."""
    return frozenset(one["name"] for one in (observed.fleet or {}).get("revisions") or () if one.get("weight"))
