"""How likely a held conversation comes back, and how soon: learnt from the gaps between turns.

Time since the last turn is cut into spans of doubling length. In each, the rate of return is taken as constant: returns
over seconds waited (the exponential model by pieces of survival analysis), so that holds which ended before anyone came
back count for what they waited, no more. Evidence fades, and where there is little of it that of all tenants counts,
and before that a guess.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from enum import IntEnum
from itertools import pairwise
from typing import Final

MAX_CLASSES: Final = 8192
MAX_FRESH: Final = 1024
HALF_LIFE_SECONDS: Final = 3600.0
FADE_STEP_SECONDS: Final = 60.0
PRIOR_HOLDS: Final = 8.0
"""How many holds' worth of evidence the prior of a class stands for."""

SPANS: Final = 13
_BOUNDS: Final = [0.0, *(2.0**power for power in range(SPANS - 1)), math.inf]
"""0, 1, 2, 4 … 2048 seconds, and what is beyond."""

_OPEN_SPAN_SECONDS: Final = 4096.0


class Kind(IntEnum):
    """What is known of a turn when it ends: the first of a conversation, a later one, or one that called tools."""

    __hash__ = int.__hash__  # an Enum's own is slow, and these are keys

    FIRST = 0
    LATER = 1
    CALLS = 2


_GUESS: Final = {Kind.FIRST: 0.08, Kind.LATER: 0.12, Kind.CALLS: 0.3}
"""The chance of return in each span up to a quarter of an hour, for who has not returned before it."""

_LATE_GUESS: Final = 0.02
_LATE_SPAN: Final = 11


_WIDTHS: Final = [*(stop - start for start, stop in pairwise(_BOUNDS[:-1])), _OPEN_SPAN_SECONDS]
_PRIOR_SECONDS: Final = [PRIOR_HOLDS * width for width in _WIDTHS]


def _span_of(age: float) -> int:
    return 0 if age < 1.0 else min(int(math.log2(age)) + 1, SPANS - 1)


class Rates:
    """Rates of return in each span, per second. `before`: the returns expected until each span begins."""

    __slots__ = ("before", "per_second")

    def __init__(self, per_second: list[float]) -> None:
        self.per_second = per_second
        self.before = [0.0]
        for rate, width in zip(per_second[:-1], _WIDTHS, strict=False):
            self.before.append(self.before[-1] + rate * width)

    def expected(self, age: float) -> float:
        """Return how many returns are expected of one who is away for `age` seconds, were each followed by another."""
        span = _span_of(age)
        return self.before[span] + self.per_second[span] * (age - _BOUNDS[span])

    def chance(self, age: float, horizon: float) -> float:
        """Return the chance that one who has been away for `age` seconds returns within `horizon` more."""
        return -math.expm1(self.expected(age) - self.expected(age + horizon))


def _guessed_rates(kind: Kind) -> Rates:
    chances = [_GUESS[kind] if span < _LATE_SPAN else _LATE_GUESS for span in range(SPANS)]
    return Rates([-math.log1p(-chance) / width for chance, width in zip(chances, _WIDTHS, strict=True)])


class Gaps:
    """The evidence of one class: seconds waited and returns, by span.

    Rates are found anew with each sixteenth more of evidence: between, they would change by less than that.
    """

    __slots__ = ("_count", "_faded", "_fresh", "_known", "_prior", "_returns", "_waited")

    def __init__(self, now: float) -> None:
        self._faded = now
        self._returns = [0.0] * SPANS
        self._waited = [0.0] * SPANS
        self._count = 0.0
        self._fresh = 0.0
        """How much more is to be learnt until what is known is found anew."""
        self._known: Rates | None = None
        self._prior: Rates | None = None

    def learn(self, age: float, now: float, *, returned: bool) -> None:
        """Take a wait of `age` seconds, that ended with a return or without one."""
        if now - self._faded >= FADE_STEP_SECONDS:
            self._fade(now)
        last = _span_of(age)
        for span in range(last):
            self._waited[span] += _WIDTHS[span]
        self._waited[last] += age - _BOUNDS[last]
        if returned:
            self._returns[last] += 1.0
        self._count += 1.0
        self._fresh -= 1.0

    def _fade(self, now: float) -> None:
        left = 0.5 ** ((now - self._faded) / HALF_LIFE_SECONDS)
        self._returns = [count * left for count in self._returns]
        self._waited = [seconds * left for seconds in self._waited]
        self._count *= left
        self._fresh = 0.0
        self._faded = now

    def rates(self, prior: Rates) -> Rates:
        """Return the rates of return; `prior`: what is thought without evidence."""
        known = self._known
        if known is not None and self._fresh > 0.0 and self._prior is prior:
            return known
        evidence = zip(self._returns, self._waited, prior.per_second, _PRIOR_SECONDS, strict=True)
        known = Rates([(returns + rate * seconds) / (waited + seconds) for returns, waited, rate, seconds in evidence])
        self._known, self._prior, self._fresh = known, prior, max(self._count / 16, 1.0)
        return known


class Returns:
    """The evidence of all classes: each tenant's by kind, and that of all tenants together by kind."""

    def __init__(self, limit: int = MAX_CLASSES) -> None:
        self._limit = limit
        self._all = {kind: Gaps(0.0) for kind in Kind}
        self._own: OrderedDict[tuple[bytes, Kind], Gaps] = OrderedDict()
        self._guess = {kind: _guessed_rates(kind) for kind in Kind}
        self._fresh: list[tuple[bytes, Kind, float, float, bool]] = []
        """What is not counted yet."""

    def learn(self, tenant: bytes, kind: Kind, age: float, now: float, *, returned: bool) -> None:
        """Take a wait that ended with a return, or without one: by lapse, release, or loss."""
        self._fresh.append((tenant, kind, age, now, returned))
        if len(self._fresh) >= MAX_FRESH:
            self.fold()

    def fold(self) -> None:
        """Count what was learnt since: a turn only says it, and what asks for a chance pays for the rest."""
        fresh, self._fresh = self._fresh, []
        for tenant, kind, age, now, returned in fresh:
            key = (tenant, kind)
            own = self._own.get(key)
            if own is None:
                own = self._own[key] = Gaps(now)
                if len(self._own) > self._limit:
                    self._own.popitem(last=False)
            else:
                self._own.move_to_end(key)
            own.learn(age, now, returned=returned)
            self._all[kind].learn(age, now, returned=returned)

    def chance(self, tenant: bytes, kind: Kind, age: float, horizon: float) -> float:
        """Return the chance of a return within `horizon` seconds, for a turn that ended `age` seconds ago."""
        if self._fresh:
            self.fold()
        rates = self._all[kind].rates(self._guess[kind])
        own = self._own.get((tenant, kind))
        return (own.rates(rates) if own is not None else rates).chance(age, horizon)
