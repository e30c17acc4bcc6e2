"""The guarded connector's rules on the simulator: the same proof, instructions and turn as on real vLLM."""

from __future__ import annotations

from typing import Any

from duplex_connector.contract import Metric, Params
from duplex_connector.handle import instructions, is_addressed, names_blocks, prepared, without_peer
from duplex_connector.proof import Decision, Outcome, Reason, decide, publish, seed
from duplex_connector.turn import Turn

from .clock import Clock
from .connector import ConnectorSettings, StockConnector
from .holds import Holds
from .metrics import Metrics
from .pull import Pull, notice
from .request import EngineRequest
from .sequence import Layout


class GuardedConnector(StockConnector):
    """Proof before a load, leases on what a finished turn leaves, pulls that need not consume.

    `adapters` maps an adapter's name to its path: both seed the proof.
    """

    def __init__(
        self,
        settings: ConnectorSettings,
        holds: Holds,
        layout: Layout,
        clock: Clock,
        *,
        adapters: dict[str, str],
        metrics: Metrics,
    ) -> None:
        super().__init__(settings, holds, layout, clock)
        self._adapters, self._metrics = adapters, metrics

    def arrived(self, request: EngineRequest) -> None:
        """Check and prove the params once; what cannot be used is taken out."""
        params = request.params
        if not params:
            return
        turn = Turn(instructions(params), is_hand_off=bool(params.get(Params.DO_REMOTE_PREFILL)))
        request.turn = turn
        lease_message = turn.instructions.renew is not None
        usable = not lease_message and names_blocks(params) and is_addressed(params)
        if not usable:
            if not lease_message and names_blocks(params):
                turn.decision = Decision(Outcome.NONE, Reason.MALFORMED)
                turn.reason = Reason.MALFORMED
            request.params = without_peer(params)
        super().arrived(request)
        if usable:
            self._prove(request, turn, params)

    def _prove(self, request: EngineRequest, turn: Turn, params: dict[str, Any]) -> None:
        decision = self._decide(request, params, is_hand_off=turn.is_hand_off)
        turn.decision, turn.reason = decision, decision.reason
        keep = turn.instructions.keep and not turn.is_hand_off
        request.params = prepared(params, decision, keep=keep, groups=len(self.layout.groups))

    def _decide(self, request: EngineRequest, params: dict[str, Any], *, is_hand_off: bool) -> Decision:
        if not is_hand_off and (not self.settings.bidirectional or self.settings.host_buffer):
            return Decision(Outcome.NONE, Reason.DISABLED)
        if params.get(Params.EXPIRY_TIME) is None:
            return Decision(Outcome.NONE, Reason.MALFORMED)
        return decide(params, request.kv.tokens, seed_bytes=self._seed(request), groups=self.layout.groups)

    def _seed(self, request: EngineRequest) -> bytes:
        name = request.kv.adapter
        return seed(adapter=(name, self._adapters[name]) if name else None, cache_salt=request.kv.salt)

    def tokens_to_load(self, request: EngineRequest, local: int) -> int:
        """Return how many proved tokens are missing; asked again, none (traps 3 and 4)."""
        if request.turn is None:
            return 0
        return request.turn.tokens_to_load(local, default_threshold=self.settings.threshold)

    def admitted(self, request: EngineRequest, loading: int) -> Pull | None:
        """Start the pull; a hold that is to be kept hears nothing where nothing is loaded."""
        turn = request.turn
        if turn is None:
            return None
        if turn.instructions.keep and not turn.is_hand_off and loading == 0 and request.params:
            request.params = without_peer(request.params)
        pull = super().admitted(request, loading)
        request.tracked = True
        turn.admit(loading)
        return pull

    def pull_failed(self, request: EngineRequest) -> None:
        """Note it, so that the request computes instead."""
        if request.turn is not None:
            request.turn.failed = True

    def finished(self, request: EngineRequest) -> tuple[bool, dict[str, Any] | None]:
        """Hold the blocks for as long as the request says, and publish the proof over their tokens."""
        turn, params = request.turn, request.params
        if turn is None or not params:
            return False, None
        if turn.delivered_pull:
            self._metrics.add(Metric.DUPLEX_PULLS, 1)
            self._metrics.add(Metric.DUPLEX_PULLED_TOKENS, turn.pulled)
        if turn.decision is not None and turn.decision.proved and not turn.is_hand_off:
            self._metrics.add(Metric.DUPLEX_PROVED_TOKENS, turn.decision.proved)
        is_prefill = bool(params.get(Params.DO_REMOTE_DECODE))
        if not is_prefill and turn.instructions.ttl == 0:
            return False, None
        held, answer = super().finished(request)
        if answer is not None:
            answer[Params.DUPLEX] = turn.report(request.prompt_tokens) if is_prefill else turn.complaint()
            answer[Params.DUPLEX] |= publish(
                request.kv.tokens[: answer[Params.NUM_TOKENS]],
                seed_bytes=self._seed(request),
                groups=self.layout.groups,
                total_blocks=request.kv.pool.count,
            )
        return held, answer

    def hold(self, request: EngineRequest, *, is_prefill: bool, ttl: float) -> dict[str, Any]:
        """Pin the blocks of a finished turn for the request's own TTL, and publish the deadline of a hand-off too."""
        wished = request.turn.instructions.ttl if request.turn is not None else None
        seconds = ttl if is_prefill or wished is None else wished
        deadline = self.clock.now() + seconds
        return super().hold(request, is_prefill=is_prefill, ttl=seconds) | {Params.EXPIRY_TIME: deadline}

    def rejected(self, params: dict[str, Any]) -> Pull | None:
        """Apply a lease message, or tell the peer of a rejected decode leg that its blocks may go."""
        if not params.get(Params.DO_REMOTE_PREFILL):
            return None
        wishes = instructions(params)
        if wishes.renew is not None:
            now = self.clock.now()
            for held, seconds in wishes.renew.items():
                self.holds.renew(held, seconds, now)
            return None
        if not is_addressed(params):
            return None
        return notice({**params, Params.BLOCK_IDS: params.get(Params.BLOCK_IDS) or [[]]})
