"""What is known of transport and reuse, and from what: engines' own figures, the preflight, turns and the canary."""

from collections.abc import Mapping, Sequence
from typing import Final

from duplex_connector.contract import PREFLIGHT_OVER_TCP, PREFLIGHT_PASSED, Role
from duplex_operator.api import ConditionType, Reason, Resolved
from duplex_operator.plan.conditions import Draft
from duplex_operator.plan.healing import describe
from duplex_operator.plan.observed import BrokenPair, Canary, Observed, Pod, Reuse
from duplex_operator.plan.stats import CANARY_FAILURES, Total

REJECTIONS: Final = {
    "no-proof": Reason.PREFIX_MISMATCH,
    "malformed": Reason.PREFIX_MISMATCH,
    "groups-differ": Reason.PREFIX_MISMATCH,
    "diverged": Reason.PREFIX_MISMATCH,
    "all-or-nothing": Reason.PREFIX_MISMATCH,
    "state-full-hit": Reason.PREFIX_MISMATCH,
    "unsupported-input": Reason.PREFIX_MISMATCH,
    "unsupported-request": Reason.PREFIX_MISMATCH,
    "unsupported-groups": Reason.PREFIX_MISMATCH,
    "unproved": Reason.PREFIX_MISMATCH,
    "shared-history": Reason.PREFIX_MISMATCH,
    "unstable-template": Reason.PREFIX_MISMATCH,
    "tenant": Reason.PREFIX_MISMATCH,
    "expired": Reason.STALE_HANDLES,
    "engine-gone": Reason.STALE_HANDLES,
    "revision": Reason.STALE_HANDLES,
    "draining": Reason.STALE_HANDLES,
    "boot": Reason.STALE_HANDLES,
    "used": Reason.STALE_HANDLES,
    "useless": Reason.STALE_HANDLES,
    "pull-failed": Reason.STALE_HANDLES,
    "prefill-failed": Reason.STALE_HANDLES,
    "preempted": Reason.STALE_HANDLES,
    "broken-pair": Reason.PEER_STALE,
    "over-budget": Reason.BUDGET_EXCEEDED,
    "below-threshold": Reason.BELOW_THRESHOLD,
    "disabled": Reason.REUSE_DISABLED,
}
"""Why routers and engines say that a turn was not reused, and the condition's reason for each."""

_REMEDIES: Final = {
    Reason.PREFIX_MISMATCH: "prompts do not continue what decode holds: look at the chat template, at what clients do "
    "to the history, and at a turn's /explain on the router's admin port",
    Reason.STALE_HANDLES: "raise ttlSeconds if turns come later than it, or see why decode engines end",
    Reason.PEER_STALE: "engines that cannot reach each other are restarted one at a time",
    Reason.BUDGET_EXCEEDED: "raise kvTransfer.bidirectional.retentionBudget.percentOfKV or decode.replicas",
    Reason.BELOW_THRESHOLD: "lower kvTransfer.bidirectional.recomputeThresholdTokens if such turns matter",
    Reason.REUSE_DISABLED: "the routers have not taken the newest fleet document yet",
    Reason.CANARY_FAILED: "see the router's log",
}

LOCAL: Final = "local"
"""Why not, where prefill had the whole history in its own cache: nothing is wrong then."""

ENOUGH_TURNS: Final = 20
LEAST_SHARE: Final = 0.1
"""Below this share of so many recent turns, reuse is said not to be effective, whatever the canary found."""

_CANARY_REASON: Final = "rejected;reason="


def transport_condition(
    resolved: Resolved, revision: str, counts: Total, observed: Observed, stale: Sequence[BrokenPair]
) -> Draft:
    """Say whether KV moved over the wanted transport between the engines of ``revision``, by their own figures.

    Over a fabric the engines' figures name no provider, so that the preflight of every engine must have found it too.
    """
    kind, wanted = ConditionType.TRANSPORT_VERIFIED, resolved.backend.value
    if stale:
        more = f" (and {len(stale) - 1} more)" if len(stale) > 1 else ""
        remedy = "one side is restarted if it lasts; if that does not help, look at the network between these pods"
        return Draft(kind, False, Reason.PEER_STALE, f"{describe(stale[0])}{more}: {remedy}")
    if counts.backend is not None and counts.backend != wanted:
        text = f"engines report {counts.backend} where {wanted} is wanted: check the EFA device plugin and the image"
        return Draft(kind, False, Reason.FELL_BACK_TO_TCP, text)
    engines = [pod for pod in observed.pods if pod.role in tuple(Role) and pod.revision == revision and pod.ready]
    if found := _preflight_finding(engines):
        return Draft(kind, False, *found)
    moved = counts.bytes_by_revision.get(revision, 0)
    if moved and resolved.fabric and any(pod.preflight != PREFLIGHT_PASSED for pod in engines):
        text = "engines moved KV, and not every engine pod tells what its preflight found of the fabric"
        return Draft(kind, None, Reason.UNKNOWN, text)
    if moved:
        return Draft(kind, True, Reason.TRANSPORT_OBSERVED, f"engines moved KV over {wanted}")
    return Draft(kind, None, Reason.NO_TRAFFIC, f"no KV has moved over {wanted} yet")


def _preflight_finding(engines: Sequence[Pod]) -> tuple[Reason, str] | None:
    """Return what a preflight found that was told to let the engine start all the same."""
    bad = sorted((pod.name, pod.preflight) for pod in engines if pod.preflight not in ("", PREFLIGHT_PASSED))
    if not bad:
        return None
    name, words = bad[0]
    reason = Reason.FELL_BACK_TO_TCP if PREFLIGHT_OVER_TCP in words else Reason.PREFLIGHT_FAILED
    return reason, f"pod {name}: {words}"


def reuse_condition(resolved: Resolved, revision: str, counts: Total) -> Draft:
    """Say whether finished turns are reused: by clients' recent turns where there are enough, else by the canary."""
    kind = ConditionType.REUSE_EFFECTIVE
    if not resolved.bidirectional:
        text = "reuse is off: set kvTransfer.bidirectional.enabled to true, if the engine can"
        return Draft(kind, False, Reason.REUSE_DISABLED, text)
    found = _by_many_turns(counts.recent) or _by_canary(counts.canaries.get(revision)) or _by_few_turns(counts.recent)
    return Draft(kind, *found)


_Verdict = tuple[bool | None, Reason, str]


def _by_many_turns(recent: Reuse) -> _Verdict | None:
    tried = recent.eligible - recent.rejected.get(LOCAL, 0)
    if tried < ENOUGH_TURNS:
        return None
    if recent.full + recent.partial >= LEAST_SHARE * tried:
        return True, Reason.REUSE_OBSERVED, f"reused: {_figures(recent)}"
    return False, *_why_not(recent.rejected, f"reused: only {_figures(recent)}")


def _by_canary(canary: Canary | None) -> _Verdict | None:
    if canary is None:
        return None
    if canary.failures >= CANARY_FAILURES:
        text = f"the canary failed {canary.failures} times in a row: {canary.message}"
        return False, Reason.CANARY_FAILED, f"{text}; {_REMEDIES[Reason.CANARY_FAILED]}"
    if canary.reused is False:
        _, _, why = canary.message.partition(_CANARY_REASON)
        return False, *_why_not({why: 1} if why else {}, f"the canary reused nothing: {canary.message}")
    return (True, Reason.REUSE_OBSERVED, "reused: the canary's second turn") if canary.reused else None


def _by_few_turns(recent: Reuse) -> _Verdict:
    if recent.full + recent.partial:
        return True, Reason.REUSE_OBSERVED, f"reused: {_figures(recent)}"
    if recent.rejected.keys() - {LOCAL}:
        return False, *_why_not(recent.rejected, "no turn was reused")
    had = "; prefill had all histories in its own cache" if LOCAL in recent.rejected else ""
    return None, Reason.NO_TRAFFIC, f"no turn that had to pull another has been served yet{had}"


def _figures(recent: Reuse) -> str:
    return f"{recent.full + recent.partial} of {recent.eligible} eligible turns of late"


def _why_not(rejected: Mapping[str, int], text: str) -> tuple[Reason, str]:
    """Return the reason that most turns share, with the remedy; ``rejected`` has the most frequent first."""
    told = {name: count for name, count in rejected.items() if name != LOCAL}
    reason = next((REJECTIONS[name] for name in told if name in REJECTIONS), Reason.CANARY_FAILED)
    words = ", ".join(f"{name} {count} times" for name, count in told.items())
    return reason, f"{text}{f' ({words})' if words else ''}: {_REMEDIES[reason]}"
