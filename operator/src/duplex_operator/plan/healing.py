"""Which engine to restart so that engines that cannot reach each other find each other again: one, and not too often.

After a cut a pair can stay broken both ways while both engines are well with others (vLLM 0.32, UCX): what ends it is a
restart of one side. Releases that do not recover from a stale peer can break besides when an engine restarts in its
living pod: there its peers are restarted.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from duplex_connector.contract import Capability, Role
from duplex_operator.api.status import HealingStatus
from duplex_operator.plan.observed import BrokenPair, Observed, Pod

PATIENCE_SECONDS: Final = 60.0
"""How long a pair must have been broken: routers try it again meanwhile, and a short cut mends by itself."""

FIRST_REST_SECONDS: Final = 300.0
LONGEST_REST_SECONDS: Final = 3600.0
"""Between two restarts of a serving; doubled with each: a network that stays cut is not mended by restarts."""

CALM_SECONDS: Final = 6 * 3600.0
"""After so long without a restart the next one counts as the first."""


@dataclass(frozen=True, slots=True)
class Restart:
    """An engine pod to delete, so that its Deployment makes another, and why."""

    pod: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class Healing:
    """Pairs that cannot reach each other, what is done about it now, and what the status remembers of it."""

    stale: tuple[BrokenPair, ...]
    restart: Restart | None
    status: HealingStatus | None


def heal(row: Capability | None, observed: Observed, now: datetime) -> Healing:
    """Decide for a serving whose engines are of the release in ``row``."""
    recovers = row is not None and row.recovers_peers
    told = observed.status.get("healing")
    former = HealingStatus.model_validate(told) if told else None
    stale = stale_pairs(observed, recovers=recovers)
    restart = restart_for(stale, observed, former, recovers=recovers, now=now)
    return Healing(stale, restart, healing_status(former, restart, now))


def stale_pairs(observed: Observed, *, recovers: bool) -> tuple[BrokenPair, ...]:
    """Return the pairs of living engines that cannot reach each other, the longest broken first.

    ``recovers``: the engines' release mends a stale peer by itself. Where it does not, an engine that restarted and
    the peers that knew it before are such pairs too, whether or not a transfer has failed yet.
    """
    engines = {pod.name: pod for pod in observed.pods if pod.role in tuple(Role) and pod.ready and not pod.terminating}
    reported = [pair for name in sorted(observed.stats) for pair in observed.stats[name].broken]
    pairs = [*reported, *([] if recovers else _strangers(engines.values()))]
    found: dict[tuple[str, str], BrokenPair] = {}
    for pair in pairs:
        key = (pair.prefill, pair.decode)
        if pair.prefill in engines and pair.decode in engines and (key not in found or pair.since < found[key].since):
            found[key] = pair
    return tuple(sorted(found.values(), key=lambda pair: (pair.since, pair.prefill, pair.decode)))


def restart_for(
    pairs: Sequence[BrokenPair], observed: Observed, former: HealingStatus | None, *, recovers: bool, now: datetime
) -> Restart | None:
    """Return the engine to restart now: the side that most pairs have in common.

    Before that comes what a restart leaves: where pairs are well, one that takes none of the last of them goes. Of two
    sides with as many, prefill goes, which holds no conversation's KV. Without ``recovers``, of a side that restarted
    and one that has run since before only the latter comes into question: it remembers what is no more. None while it
    is too early, or while another engine of the role is missing or about to go: a restart must not take the last one
    that serves.
    """
    since = now.timestamp() - PATIENCE_SECONDS
    lasting = [pair for pair in pairs if pair.since <= since]
    if not lasting or now < _rests_until(former):
        return None
    pods = {pod.name: pod for pod in observed.pods}
    counts = Counter(
        pod.name for pair in lasting for pod in _to_blame(pods[pair.prefill], pods[pair.decode], recovers=recovers)
    )
    broken = frozenset((pair.prefill, pair.decode) for pair in pairs)

    def order(name: str) -> tuple[bool, int, bool, str]:
        return not _leaves_a_pair(pods[name], observed, broken), -counts[name], pods[name].role != Role.PREFILL, name

    target = pods[min(counts, key=order)]
    fellows = [pod for pod in observed.pods if (pod.role, pod.revision) == (target.role, target.revision)]
    if any(pod.terminating or not pod.ready or pod.draining_since for pod in fellows):
        return None
    worst = next(pair for pair in lasting if target.name in (pair.prefill, pair.decode))
    return Restart(target.name, target.uid, f"{describe(worst)}; {target.role} pod {target.name} is restarted")


def healing_status(former: HealingStatus | None, restart: Restart | None, now: datetime) -> HealingStatus | None:
    """Return what to remember of restarts; it is what keeps them rare over a change of leader too."""
    if restart is None:
        return former
    count = former.restarts if former is not None and now < _time(former) + timedelta(seconds=CALM_SECONDS) else 0
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return HealingStatus(restarts=count + 1, last_restart_time=stamp, pod=restart.pod, message=restart.why)


def describe(pair: BrokenPair) -> str:
    """Say which pair is broken, and since when."""
    since = datetime.fromtimestamp(pair.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"prefill {pair.prefill} and decode {pair.decode} have not reached each other since {since}"


def _leaves_a_pair(target: Pod, observed: Observed, broken: AbstractSet[tuple[str, str]]) -> bool:
    """Tell whether a pair of the target's revision that is well does without it."""
    others = [pod for pod in observed.pods if pod.ready and not pod.terminating and pod.name != target.name]
    prefill, decode = (
        [pod.name for pod in others if (pod.role, pod.revision) == (role, target.revision)] for role in Role
    )
    return any(pair not in broken for pair in itertools.product(prefill, decode))


def _to_blame(prefill: Pod, decode: Pod, *, recovers: bool) -> tuple[Pod, ...]:
    older, newer = sorted((prefill, decode), key=lambda pod: pod.started)
    return (prefill, decode) if recovers or not newer.restarts else (older,)


def _strangers(engines: Iterable[Pod]) -> list[BrokenPair]:
    """Return pairs of which one side restarted in its pod after the other had started."""
    each = list(engines)
    pairs = []
    for prefill in (pod for pod in each if pod.role == Role.PREFILL):
        for decode in (pod for pod in each if pod.role == Role.DECODE and pod.revision == prefill.revision):
            older, newer = sorted((prefill, decode), key=lambda pod: pod.started)
            if newer.restarts and older.started < newer.started:
                since = datetime.fromisoformat(newer.started).timestamp()
                pairs.append(BrokenPair(prefill.name, decode.name, since))
    return pairs


def _rests_until(former: HealingStatus | None) -> datetime:
    if former is None:
        return datetime.min.replace(tzinfo=UTC)
    rest = min(FIRST_REST_SECONDS * 2.0 ** (min(former.restarts, 16) - 1), LONGEST_REST_SECONDS)
    return _time(former) + timedelta(seconds=rest)


def _time(former: HealingStatus) -> datetime:
    return datetime.fromisoformat(former.last_restart_time)
