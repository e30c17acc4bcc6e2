"""From a router's /stats document to values. A router may be older, newer or broken: nothing here raises."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from duplex_operator.plan.observed import RouterStats

_MOST_NAMES: Final = 32
"""Longest map that is taken over into status."""

_VERSION_PARTS: Final = 2


def parse_stats(document: object) -> RouterStats:
    """Take what is there and has the right type; the rest keeps its default."""
    top = _mapping(document)
    version = top.get("fleetVersion")
    reuse, retention = _mapping(top.get("reuse")), _mapping(top.get("retention"))
    kv = _mapping(top.get("kv"))
    transport, canary = _mapping(top.get("transport")), _mapping(top.get("canary"))
    reused = canary.get("reused")
    return RouterStats(
        fleet_version=(_count(version[0]), _count(version[1]))
        if isinstance(version, list) and len(version) == _VERSION_PARTS
        else (0, 0),
        served_tokens={
            str(name)[:63]: _count(_mapping(entry).get("servedTokens"))
            for name, entry in list(_mapping(top.get("revisions")).items())[:_MOST_NAMES]
        },
        turns=_count(top.get("turns")),
        eligible=_count(reuse.get("eligible")),
        full=_count(reuse.get("full")),
        partial=_count(reuse.get("partial")),
        saved_prefill_tokens=_count(reuse.get("savedPrefillTokens")),
        rejected={
            str(reason)[:63]: _count(number)
            for reason, number in list(_mapping(reuse.get("rejected")).items())[:_MOST_NAMES]
        },
        conversations=_count(retention.get("conversations")),
        held_tokens=_count(retention.get("tokens")),
        kv_bytes_per_token=_count(kv.get("bytesPerToken")),
        decode_kv_tokens=_count(kv.get("decodeTokens")),
        backend=_text(transport.get("backend")),
        bytes_moved=_count(transport.get("bytesMoved")),
        canary_reused=reused if isinstance(reused, bool) else None,
        canary_message=_text(canary.get("message")) or "",
    )


@dataclass(frozen=True, slots=True)
class Total:
    """The routers of a serving together. ``canary_reused`` is true where any canary reused.

    ``kv_bytes_per_token`` and ``decode_kv_tokens`` are the largest that a router knows, since all see the same engines;
    0 is unknown.
    """

    turns: int
    eligible: int
    full: int
    partial: int
    saved_prefill_tokens: int
    rejected: Mapping[str, int]
    conversations: int
    held_tokens: int
    kv_bytes_per_token: int
    decode_kv_tokens: int
    backend: str | None
    bytes_moved: int
    canary_reused: bool | None
    canary_message: str
    served_tokens: Mapping[str, int]


def total(stats: Iterable[RouterStats]) -> Total:
    """Add up what routers say; of texts the first in the given order stands."""
    each = list(stats)
    reused = [one.canary_reused for one in each if one.canary_reused is not None]
    return Total(
        turns=sum(one.turns for one in each),
        eligible=sum(one.eligible for one in each),
        full=sum(one.full for one in each),
        partial=sum(one.partial for one in each),
        saved_prefill_tokens=sum(one.saved_prefill_tokens for one in each),
        rejected=_added(one.rejected for one in each),
        conversations=sum(one.conversations for one in each),
        held_tokens=sum(one.held_tokens for one in each),
        kv_bytes_per_token=max((one.kv_bytes_per_token for one in each), default=0),
        decode_kv_tokens=max((one.decode_kv_tokens for one in each), default=0),
        backend=next((one.backend for one in each if one.backend), None),
        bytes_moved=sum(one.bytes_moved for one in each),
        canary_reused=any(reused) if reused else None,
        canary_message=next((one.canary_message for one in each if one.canary_message), ""),
        served_tokens=_added(one.served_tokens for one in each),
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
