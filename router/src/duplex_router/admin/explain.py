"""`/explain/<request id>`: in words why a turn did or did not reuse what decode held of its conversation."""

from __future__ import annotations

from typing import Any, Final

from duplex_connector.proof import Outcome as Proof
from duplex_connector.proof import Reason
from duplex_router.turn.offer import Rejection
from duplex_router.turn.record import LegRecord, TurnRecord

_NOTHING_FOUND: Final = "No handle shares any of this history: it is new here, or its hold has lapsed or was released."

_WORDS: Final[dict[str, str]] = {
    Rejection.DISABLED: "The policy says that nothing is reused.",
    Rejection.UNSUPPORTED_REQUEST: "A request for several sequences or prompt log-probabilities runs on decode alone.",
    Rejection.UNSUPPORTED_INPUT: "Its content cannot be followed (prompt embeddings, several prompts).",
    Rejection.TENANT: "What shares this history belongs to another tenant.",
    Rejection.EXPIRED: "What was held of this history ends too soon for a pull, or has ended.",
    Rejection.ENGINE_GONE: "The engine that held this history is gone.",
    Rejection.REVISION: "What was held is of a revision without a ready prefill and decode engine.",
    Rejection.UNPROVED: "Stock engines prove nothing, and no former prompt's end is known within the shared history.",
    Rejection.SHARED_HISTORY: "Another live conversation shares this history, and a stock engine's handle serves once.",
    Rejection.UNSTABLE_TEMPLATE: "The template renders a prompt otherwise once more messages follow, or is not probed.",
    Rejection.UNSUPPORTED_GROUPS: "The model's KV is not all full attention: a part of it cannot be named.",
    Rejection.PREFILL_FAILED: "The prefill leg that carried the handle failed; the next went without it.",
    Rejection.BROKEN_PAIR: "Prefill and the engine that held this history cannot reach each other now.",
    Rejection.USED: "Another turn has used up the handle of this history.",
    Rejection.OVER_BUDGET: "What was held of this history was released to keep within the budget.",
    Rejection.BOOT: "The engine that held this history has started anew.",
    Rejection.DRAINING: "The engine that held this history is gone: it was drained.",
    Rejection.USELESS: "An earlier turn found the handle of this history to be of no use.",
    Reason.BELOW_THRESHOLD: "Prefill missed fewer tokens than the threshold, so it computed them.",
    Reason.LOCAL: "Prefill still had all of the shared history in its own cache.",
    Reason.PULL_FAILED: "The transfer from decode failed; prefill computed instead.",
    Reason.NO_PROOF: "The handle carries no proof.",
    "not-pulled": "Prefill was given the handle and pulled nothing.",
}


def explain(record: TurnRecord) -> dict[str, Any]:
    """Return a turn's record for a person to read, times in seconds."""
    outcome = record.outcome
    return {
        "requestId": record.request_id,
        "why": " ".join(_sentences(record)),
        "reuse": outcome.kind,
        "reason": outcome.reason,
        "status": record.status,
        "path": record.path,
        "seconds": round(record.seconds, 6),
        "firstByteSeconds": round(record.first_byte - record.began, 6) if record.first_byte else None,
        "revision": record.revision,
        "prefill": _last(record, "prefill"),
        "decode": _last(record, "decode"),
        "heldBy": record.source or None,
        "matchedDepth": record.matched_depth,
        "historyDepth": record.history_depth,
        "otherRouters": record.lookup.what or None,
        "provedTokens": outcome.proved,
        "pulledTokens": outcome.pulled,
        "localTokens": outcome.local,
        "computedTokens": outcome.computed,
        "completionTokens": record.completion_tokens,
        "legs": [_leg(leg, record.began) for leg in record.legs],
    }


def _last(record: TurnRecord, name: str) -> str | None:
    return next((leg.engine for leg in reversed(record.legs) if leg.name == name), None)


def _leg(leg: LegRecord, began: float) -> dict[str, Any]:
    return {
        "leg": leg.name,
        "engine": leg.engine,
        "beganSeconds": round(leg.began - began, 6),
        "seconds": round(leg.seconds, 6) if leg.ended else None,
        "failed": leg.what or None,
    }


def _sentences(record: TurnRecord) -> list[str]:
    outcome = record.outcome
    said = []
    if record.source:
        said.append(
            f"Engine {record.source} held a history that shares the first {record.matched_depth} of this request's "
            f"{record.history_depth} parts."
        )
    if record.lookup.what:
        said.append(f"The ledger that routers share was asked: {record.lookup.what}.")
    if outcome.kind in (Proof.FULL, Proof.PARTIAL):
        shown = f"proved {outcome.proved} of its tokens equal and " if outcome.proved else ""
        said.append(f"Prefill {shown}pulled {outcome.pulled}; it computed {outcome.computed} tokens.")
    elif outcome.reason:
        said.append(_WORDS.get(outcome.reason, f"Prefill refused the handle: {outcome.reason}."))
    elif not record.source:
        said.append(_NOTHING_FOUND)
    failed = [f"the {leg.name} leg on {leg.engine} ({leg.what})" for leg in record.legs if leg.what]
    if failed:
        said.append(f"Failed: {', '.join(failed)}.")
    return said
