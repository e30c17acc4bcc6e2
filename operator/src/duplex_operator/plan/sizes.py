"""The arithmetic of a rollout: how many engines of each role every revision gets next. Whole numbers in and out.

One unit is one engine of the scarcer role with its share of the other: 2 prefill and 4 decode engines are two units of
1 + 2. Capacity counts matched engines only, since prefill and decode of different revisions never pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from duplex_operator.api.models import Rollout


@dataclass(frozen=True, slots=True)
class Sizes:
    """Engines of each role."""

    prefill: int = 0
    decode: int = 0

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(self.prefill + other.prefill, self.decode + other.decode)

    def __sub__(self, other: Sizes) -> Sizes:
        return Sizes(max(0, self.prefill - other.prefill), max(0, self.decode - other.decode))

    def __bool__(self) -> bool:
        return bool(self.prefill or self.decode)

    @property
    def pair(self) -> bool:
        """Whether there is an engine of each role."""
        return bool(self.prefill and self.decode)

    def least(self, other: Sizes) -> Sizes:
        """Return the smaller number of each role."""
        return Sizes(min(self.prefill, other.prefill), min(self.decode, other.decode))

    def most(self, other: Sizes) -> Sizes:
        """Return the greater number of each role."""
        return Sizes(max(self.prefill, other.prefill), max(self.decode, other.decode))


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a rollout may leave the wanted size, in units. Not both are 0."""

    surge: int
    unavailable: int


@dataclass(frozen=True, slots=True)
class Standing:
    """One revision: the engines that its Deployments ask for, and those that are ready."""

    name: str
    size: Sizes
    ready: Sizes


def bounds_of(rollout: Rollout) -> Bounds:
    """Return the bounds of a spec: one spare unit and none missing, where it says nothing; no spare one, one missing.

    Never both 0, which the CRD refuses.
    """
    surge, unavailable = rollout.max_surge, rollout.max_unavailable
    if surge is None:
        surge = 0 if unavailable else 1
    if unavailable is None:
        unavailable = 0 if surge else 1
    return Bounds(surge, unavailable)


def units_of(target: Sizes) -> int:
    """Return the number of units that a size has."""
    return min(target.prefill, target.decode)


def capacity(engines: Sizes, target: Sizes) -> Fraction:
    """Return the matched capacity of engines in units, at most the target's."""
    units = units_of(target)
    if not units:
        return Fraction(0)
    least = min(Fraction(engines.prefill, target.prefill), Fraction(engines.decode, target.decode))
    return min(least * units, Fraction(units))


def size_of(units: Fraction, target: Sizes) -> Sizes:
    """Return the fewest engines that have so much capacity. It may go beyond the target's."""
    share = units / max(1, units_of(target))
    return Sizes(math.ceil(share * target.prefill), math.ceil(share * target.decode))


def matched(room: Sizes, target: Sizes) -> Sizes:
    """Return the most engines within ``room`` and the target of which none lacks its share of the other role."""
    return size_of(capacity(room, target), target)


def next_sizes(
    target: Sizes,
    bounds: Bounds,
    new: Standing,
    old: Sequence[Standing],
    *,
    proved: bool,
    held: bool = False,
    old_grows: bool = False,
    leaving: Sizes = Sizes(),
) -> Mapping[str, Sizes]:
    """Return the next sizes by revision, the wanted one's among them; each step leads nearer to ``target`` alone.

    ``old``: other revisions that stay, first the one that serves. ``proved``: a token came through the new one, or no
    other can serve. ``held``: paused or stalled, so that nothing moves between revisions. ``old_grows``: the new one
    cannot take a greater load, so that the serving one has to. ``leaving``: terminating engines of old revisions,
    whose devices are not free yet.

    What holds of every step: no more engines than the target and ``bounds.surge`` units, except those that are there
    already; no less capacity than the target's without ``bounds.unavailable`` units is left where it was there before;
    and before the new revision has proved itself the serving one keeps a pair, unless the bounds leave no other way.
    """
    if not old:
        return {new.name: target}
    if not units_of(target):
        return {new.name: target, **{one.name: Sizes() for one in old}}
    units = units_of(target)
    if held and proved:
        sizes = _kept(target, target, old)
        return {new.name: _grown(new, target - _total(sizes.values()), target), **sizes}
    if proved:
        needed = max(units - bounds.unavailable - capacity(new.ready, target), Fraction(0))
        stays, most = size_of(needed, target), target
    else:
        most = size_of(Fraction(min(bounds.surge or bounds.unavailable, units)), target)
        stays = target if held or bounds.surge else _making_room(target, bounds, begun=not most - new.size)
    limit = size_of(Fraction(units + bounds.surge), target) - leaving
    room = limit - _total(one.size for one in old)
    grown = new.size.least(target) if held else _grown(new, room.least(most), target)
    sizes = _kept(stays, target, old)
    if not proved and (held or old_grows):
        others = _total(sizes[one.name] for one in old[1:])
        sizes[old[0].name] = (stays - others).least((limit - others - grown).most(old[0].size))
    if len(old) > 1 and not (held or leaving) and all(sizes[one.name] == one.size for one in old):
        at_rest = new.size == grown == grown.least(new.ready)
        if at_rest and grown.least(most) != most:
            # What each keeps is rounded up to whole engines: together they leave no room to get on. The last one goes.
            sizes[old[-1].name] = Sizes()
    return {new.name: grown, **sizes}


def _total(sizes: Iterable[Sizes]) -> Sizes:
    return sum(sizes, Sizes())


def _grown(new: Standing, room: Sizes, target: Sizes) -> Sizes:
    return new.size.least(target).most(matched(room, target))


def _making_room(target: Sizes, bounds: Bounds, *, begun: bool) -> Sizes:
    """Return what stays of old revisions where one that has not served yet gets no spare engines: a unit if it can.

    ``begun``: the new one has its room already, as after a scale-down, so that the last unit need not make any.
    """
    units = units_of(target)
    return size_of(Fraction(max(units - bounds.unavailable, 1 if units > 1 or begun else 0)), target)


def _kept(stays: Sizes, target: Sizes, old: Sequence[Standing]) -> dict[str, Sizes]:
    """Share out what stays among old revisions, what can serve before what cannot, the serving one first.

    Of one revision those that are not ready go first: Deployments choose so, too.
    """
    needed = capacity(stays, target)
    shares: dict[str, Fraction] = {}
    for ready in (True, False):
        for one in old:
            has = capacity(one.ready.least(one.size) if ready else one.size, target)
            more = min(needed, max(has - shares.get(one.name, Fraction(0)), Fraction(0)))
            shares[one.name] = shares.get(one.name, Fraction(0)) + more
            needed -= more
    sizes = {one.name: one.size.least(size_of(shares[one.name], target)) for one in old}
    serving = old[0]
    # The serving one keeps also what has no match, as far as it is not too much.
    rest = stays - _total(sizes[one.name] for one in old[1:])
    return sizes | {serving.name: sizes[serving.name].most(serving.size.least(rest))}
