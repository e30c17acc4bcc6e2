"""From a router's /stats document to values. A router may be older, newer or broken: nothing here raises."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from duplex_operator.plan.observed import BrokenPair, Canary, Load, Reuse, RouterStats

CANARY_FAILURES: Final = 3
"""Failures in a row after which a revision is said not to serve: one alone may be an engine that just went."""

_MOST_NAMES: Final = 32
"""Longest map that is taken over into status."""

_MOST_PODS: Final = 1024
"""Most engines whose load is taken over."""

_VERSION_PARTS: Final = 2


def parse_stats(document: object) -> RouterStats:
    """Take what is there and has the right type; the rest keeps its default."""
    top = _mapping(document)
    version = top.get("fleetVersion")
    retention, kv, transport = _mapping(top.get("retention")), _mapping(top.get("kv")), _mapping(top.get("transport"))
    revisions = {
        str(name)[:63]: _mapping(entry) for name, entry in list(_mapping(top.get("revisions")).items())[:_MOST_NAMES]
    }
    return RouterStats(
        fleet_version=(_count(version[0]), _count(version[1]))
        if isinstance(version, list) and len(version) == _VERSION_PARTS
        else (0, 0),
        served_tokens={name: _count(entry.get("servedTokens")) for name, entry in revisions.items()},
        bytes_by_revision={name: _count(entry.get("bytesMoved")) for name, entry in revisions.items()},
        canaries={name: _canary(entry["canary"]) for name, entry in revisions.items() if "canary" in entry},
        broken=tuple(_broken(top.get("brokenPairs"))),
        loads=_loads(_mapping(top.get("loads"))),
        turns=_count(top.get("turns")),
        reuse=_reuse(top.get("reuse")),
        recent=_reuse(top.get("recentReuse")),
        saved_prefill_tokens=_count(_mapping(top.get("reuse")).get("savedPrefillTokens")),
        conversations=_count(retention.get("conversations")),
        held_tokens=_count(retention.get("tokens")),
        kv_bytes_per_token=_count(kv.get("bytesPerToken")),
        decode_kv_tokens=_count(kv.get("decodeTokens")),
        backend=_text(transport.get("backend")),
        bytes_moved=_count(transport.get("bytesMoved")),
    )


def _loads(engines: Mapping[str, Any]) -> dict[str, Load]:
    known = {str(pod)[:253]: _mapping(entry) for pod, entry in list(engines.items())[:_MOST_PODS]}
    return {
        pod: Load(_count(entry.get("legs")), _count(entry.get("tokens")), _count(entry.get("value")))
        for pod, entry in known.items()
    }


def _canary(value: object) -> Canary:
    found = _mapping(value)
    reused = found.get("reused")
    return Canary(
        last_success=float(_count(found.get("lastSuccess"))),
        reused=reused if isinstance(reused, bool) else None,
        failures=_count(found.get("failures")),
        message=_text(found.get("message")) or "",
    )


def _reuse(value: object) -> Reuse:
    found = _mapping(value)
    rejected = list(_mapping(found.get("rejected")).items())[:_MOST_NAMES]
    return Reuse(
        eligible=_count(found.get("eligible")),
        full=_count(found.get("full")),
        partial=_count(found.get("partial")),
        rejected={str(reason)[:63]: _count(number) for reason, number in rejected},
    )


def _broken(value: object) -> Iterable[BrokenPair]:
    for entry in value[:_MOST_NAMES] if isinstance(value, list) else ():
        found = _mapping(entry)
        prefill, decode, since = _text(found.get("prefill")), _text(found.get("decode")), _count(found.get("since"))
        if prefill and decode and since:
            yield BrokenPair(prefill, decode, float(since))


@dataclass(frozen=True, slots=True)
class Total:
    """The routers of a serving together.

    ``canaries``: by revision, that of the router whose canary came through last; ``failures`` of it are the fewest of
    any router, since a revision serves as long as one router reaches it. ``kv_bytes_per_token`` and
    ``decode_kv_tokens`` are the largest that a router knows, since all see the same engines; 0 is unknown.
    """

    turns: int
    reuse: Reuse
    recent: Reuse
    saved_prefill_tokens: int
    conversations: int
    held_tokens: int
    kv_bytes_per_token: int
    decode_kv_tokens: int
    backend: str | None
    bytes_moved: int
    bytes_by_revision: Mapping[str, int]
    canaries: Mapping[str, Canary]
    served_tokens: Mapping[str, int]
    answered: bool


def total(stats: Iterable[RouterStats]) -> Total:
    """Add up what routers say. ``answered``: at least one did."""
    each = list(stats)
    return Total(
        turns=sum(one.turns for one in each),
        reuse=_added_reuse(one.reuse for one in each),
        recent=_added_reuse(one.recent for one in each),
        saved_prefill_tokens=sum(one.saved_prefill_tokens for one in each),
        conversations=sum(one.conversations for one in each),
        held_tokens=sum(one.held_tokens for one in each),
        kv_bytes_per_token=max((one.kv_bytes_per_token for one in each), default=0),
        decode_kv_tokens=max((one.decode_kv_tokens for one in each), default=0),
        backend=next((one.backend for one in each if one.backend), None),
        bytes_moved=_seen(one.bytes_moved for one in each),
        bytes_by_revision={
            name: _seen(one.bytes_by_revision.get(name, 0) for one in each)
            for name in sorted({name for one in each for name in one.bytes_by_revision})
        },
        canaries=_canaries(each),
        served_tokens=_added(one.served_tokens for one in each),
        answered=bool(each),
    )


def _seen(numbers: Iterable[int]) -> int:
    """Return the largest: every router reads the same engines, and the one that runs longest saw most of them."""
    return max(numbers, default=0)


def _canaries(each: list[RouterStats]) -> dict[str, Canary]:
    found: dict[str, Canary] = {}
    for name in sorted({name for one in each for name in one.canaries}):
        present = [one.canaries[name] for one in each if name in one.canaries]
        best = min(present, key=lambda canary: (canary.failures, -canary.last_success))
        found[name] = best
    return found


def _added_reuse(parts: Iterable[Reuse]) -> Reuse:
    each = list(parts)
    return Reuse(
        eligible=sum(one.eligible for one in each),
        full=sum(one.full for one in each),
        partial=sum(one.partial for one in each),
        rejected=_added(one.rejected for one in each),
    )


def _added(maps: Iterable[Mapping[str, int]]) -> dict[str, int]:
    summed: dict[str, int] = {}
    for one in maps:
        for name, number in one.items():
            summed[name] = summed.get(name, 0) + number
    return dict(sorted(summed.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST_NAMES])


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: object) -> int:
    return max(0, int(value)) if isinstance(value, int | float) and abs(value) < 2**62 else 0


def _text(value: object) -> str | None:
    return value[:500] if isinstance(value, str) else None
