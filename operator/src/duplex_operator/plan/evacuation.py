"""Engines on nodes that are about to go: others take their place first, where there is room for it; then they go.

How they go is the same as for every engine (`drain`). What is decided here is how many more there are meanwhile, and
which may begin to go without leaving fewer ready engines than the bounds allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from duplex_operator.plan.observed import Pod
from duplex_operator.plan.sizes import Bounds, Sizes, size_of, units_of


@dataclass(frozen=True, slots=True)
class Room:
    """Engines of each role that may be there too many, and that may be missing."""

    spare: Sizes
    missing: Sizes


@dataclass(frozen=True, slots=True)
class Evacuation:
    """One role's engines now. ``size``: how many there shall be beside those that are ``gone``.

    ``gone``: nobody needs them any more. ``first``: these go before any others, the gone ones among them. ``waiting``:
    those for which there is no replacement yet.
    """

    size: int
    gone: tuple[Pod, ...] = ()
    first: tuple[Pod, ...] = ()
    waiting: tuple[Pod, ...] = ()


def room_of(target: Sizes, bounds: Bounds) -> Room:
    """Return the room that the bounds of a rollout leave, in engines."""
    units = units_of(target)

    def engines(number: int) -> Sizes:
        return size_of(Fraction(min(number, units)), target)

    return Room(engines(bounds.surge), engines(bounds.unavailable))


def evacuate(
    living: Sequence[Pod], wants: int, spare: int, missing: int, order: Callable[[Pod], tuple[object, ...]]
) -> Evacuation:
    """Decide for the living engines of one role and revision, of which there shall be ``wants`` in the end.

    ``order``: what goes first among equals. Engines whose node ends by itself, and soon, go without a replacement.
    """
    leaving = sorted((pod for pod in living if pod.cordoned), key=order)
    gone = tuple(pod for pod in leaving if pod.doomed or not pod.ready)
    left = [pod for pod in leaving if pod not in gone]
    ready = sum(pod.ready for pod in living if pod not in gone)
    may_go = max(0, ready - (wants - missing))
    going = [pod for place, pod in enumerate(left) if place < may_go or pod.ending]
    return Evacuation(
        size=wants + min(len(left), spare),
        gone=gone,
        first=(*gone, *going),
        waiting=tuple(pod for pod in left if pod not in going),
    )
