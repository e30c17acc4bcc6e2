"""Sizes that a serving may have: the bounds of each role, and the ratio between them. Whole numbers in and out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from duplex_operator.api.models import Spec
from duplex_operator.api.resolve import ResolvedRole, resolve
from duplex_operator.api.role import MAX_AGENTS
from duplex_operator.api.scaling import ScalingMode


@dataclass(frozen=True, slots=True)
class Range:
    """An inclusive range of engines."""

    least: int
    most: int

    def clamp(self, number: int) -> int:
        """Return the nearest number within."""
        return min(max(number, self.least), self.most)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of both roles. ``ratio``: fewest and most prefill engines per decode engine, None where any will do."""

    prefill: Range
    decode: Range
    ratio: tuple[Fraction, Fraction] | None = None

    def settle(self, prefill: int, decode: int) -> tuple[int, int] | None:
        """Return the sizes to have where these are asked for; None where no size within the bounds keeps the ratio.

        The role that is too small for the ratio grows to the least size that keeps it. Where its bounds end before
        that, the other role gets as much smaller as it must. What keeps everything is left as it is.
        """
        prefill, decode = self.prefill.clamp(prefill), self.decode.clamp(decode)
        if self.ratio is None:
            return prefill, decode
        fewest, most = self.ratio
        # Each pass only raises, then only lowers, within bounds: both come to rest.
        while True:
            more_prefill = min(max(prefill, math.ceil(fewest * decode)), self.prefill.most)
            more_decode = min(max(decode, math.ceil(prefill / most)), self.decode.most)
            if (more_prefill, more_decode) == (prefill, decode):
                break
            prefill, decode = more_prefill, more_decode
        while True:
            less_prefill = min(prefill, math.floor(most * decode))
            less_decode = min(decode, math.floor(prefill / fewest))
            if (less_prefill, less_decode) == (prefill, decode):
                break
            prefill, decode = less_prefill, less_decode
        return (prefill, decode) if prefill >= self.prefill.least and decode >= self.decode.least else None


def limits_of(spec: Spec) -> Limits:
    """Return the bounds that a spec sets. A role whose mode is Fixed has one size."""
    ratio = spec.scaling.ratio
    prefill, decode = (_range(role) for role in resolve(spec).roles)
    return Limits(prefill, decode, (_fraction(ratio.min), _fraction(ratio.max)) if ratio else None)


def _range(role: ResolvedRole) -> Range:
    scaling = role.spec.scaling
    if scaling.mode is ScalingMode.FIXED:
        return Range(role.spec.replicas, role.spec.replicas)
    least = 1 if scaling.min_replicas is None else scaling.min_replicas
    most = max(1, MAX_AGENTS // role.ranks) if scaling.max_replicas is None else scaling.max_replicas
    return Range(min(least, most), most)


def _fraction(text: str) -> Fraction:
    prefill, decode = text.split(":")
    return Fraction(int(prefill), int(decode))
