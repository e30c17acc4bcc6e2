"""One request on a guarded engine: what its handle proved, what was loaded, and why not more.

Pure state, driven by the hooks of nixl_scheduler.py; `report` is what a prefill engine tells the router.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .contract import Duplex
from .handle import Instructions
from .proof import Decision, Outcome, Reason


@dataclass
class Turn:
    """`decision`: None where the request named no blocks. Token counts are of this request's prompt.

    `local`: found in the engine's own prefix cache. `pulled`: loaded from the peer.
    """

    instructions: Instructions
    decision: Decision | None = None
    is_hand_off: bool = False
    local: int = 0
    pulled: int = 0
    reason: Reason = Reason.EMPTY
    admitted: bool = False
    failed: bool = False

    def __post_init__(self) -> None:
        if self.decision is not None:
            self.reason = self.decision.reason

    def tokens_to_load(self, local: int, *, default_threshold: int) -> int:
        """Return how many tokens to load beyond the `local` ones; asked again, an admitted request loads nothing.

        A stock engine would wait for ever in that second case, after a failed load or a preemption: it asks for a
        load that it does not start again.
        """
        self.local = local
        if self.admitted:
            self.pulled = 0
            self.reason = Reason.PULL_FAILED if self.failed else Reason.PREEMPTED
            return 0
        if self.decision is None or self.decision.tokens == 0:
            return 0
        missing = self.decision.tokens - local
        if missing <= 0:
            self.reason = Reason.LOCAL
            return 0
        threshold = self.instructions.threshold
        if not self.is_hand_off and missing < (default_threshold if threshold is None else threshold):
            self.reason = Reason.BELOW_THRESHOLD
            return 0
        self.reason = self.decision.reason
        return missing

    def admit(self, loading: int) -> None:
        """Note that the engine gave the request its blocks and loads `loading` tokens into them."""
        if not self.admitted:
            self.admitted = True
            self.pulled = loading

    @property
    def delivered_pull(self) -> bool:
        """Whether KV came from a decode engine."""
        return self.pulled > 0 and not self.failed and not self.is_hand_off

    def complaint(self) -> dict[str, Any]:
        """Return what a decode engine says in its handle of a hand-off that it could not read; empty where it could.

        Its answer is right all the same, since it computed instead: nobody else would learn that the pair is broken.
        """
        return {Duplex.REASON: Reason.PULL_FAILED.value} if self.is_hand_off and self.failed else {}

    def report(self, prompt_tokens: int) -> dict[str, Any]:
        """Return what became of the handle, for the `duplex` object of the engine's answer."""
        decision = self.decision or Decision(Outcome.NONE)
        return {
            Duplex.PROVED: decision.proved,
            Duplex.PULLED: self.pulled,
            Duplex.LOCAL: self.local,
            Duplex.COMPUTED: max(0, prompt_tokens - self.local - self.pulled),
            Duplex.OUTCOME: decision.outcome.value,
            Duplex.REASON: self.reason.value,
        }
