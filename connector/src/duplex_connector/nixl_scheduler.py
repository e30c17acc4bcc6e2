"""The scheduler side of the guarded connector: proof before a load, leases on what a finished turn leaves.

Written against vLLM 0.32 and 0.33 (nixl/base_scheduler.py, nixl/pull_scheduler.py, v1/core/sched/scheduler.py). Each
override says which behaviour of vLLM it replaces, and why.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.scheduler import NixlConnectorScheduler
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from .contract import Metric, Params
from .handle import Instructions, instructions, is_addressed, names_blocks, prepared, without_peer
from .holds import Holds
from .nixl_stats import GuardedStats
from .proof import Decision, Group, GroupKind, Outcome, Reason, cut_blocks, decide, publish, seed
from .turn import Turn

logger = init_logger(__name__)


def _group(spec: Any, window_blocks: int | None) -> Group:  # noqa: ANN401 - vLLM's KVCacheSpec
    """Return what a KV-cache group is to the proof.

    A window kept whole (`--disable-hybrid-kv-cache-manager`) has vLLM's full-attention spec, so the class decides.
    """
    if isinstance(spec, UniformTypeKVCacheSpecs):
        spec = spec.first_spec
    if isinstance(spec, FullAttentionSpec):
        return Group(GroupKind.FULL, spec.block_size)
    if isinstance(spec, SlidingWindowSpec | ChunkedLocalAttentionSpec):
        return Group(GroupKind.WINDOW, spec.block_size, window_blocks)
    if isinstance(spec, MambaSpec):
        return Group(GroupKind.STATE, spec.block_size)
    raise ValueError(
        f"duplex: this model keeps KV in a way that the guarded connector does not know ({type(spec).__name__}), so it "
        "cannot prove what may be reused. Serve it with `engine.connector: Stock`."
    )


def _kv_bytes_per_token(kv_cache_config: Any, ranks: int) -> int:  # noqa: ANN401 - vLLM's KVCacheConfig
    """Return the bytes of KV cache that a token takes on all `ranks` of the engine, counted as if no window cut it.

    A spec's page is what one layer keeps per block on one rank; a uniform spec's is that of all its layers. State
    space models keep a state per request, not per token.
    """
    total = 0
    for group in kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        layers = 1 if isinstance(spec, UniformTypeKVCacheSpecs) else len(group.layer_names)
        if not isinstance(spec, MambaSpec):
            total += layers * spec.page_size_bytes // spec.block_size
    return total * ranks


class GuardedScheduler(NixlConnectorScheduler):  # type: ignore[misc] # vLLM is only there inside an engine image
    """vLLM's pull scheduler that loads what is proved and nothing else."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:  # noqa: ANN401 - vLLM's classes
        super().__init__(vllm_config, engine_id, kv_cache_config)
        windows = self.blocks_per_sw if self._is_hma_required else [0] * len(self.blocks_per_sw)
        self._groups = [
            _group(group.kv_cache_spec, blocks or None)
            for group, blocks in zip(kv_cache_config.transfer_groups, windows, strict=True)
        ]
        self._turns: dict[str, Turn] = {}
        self._holds = Holds()
        self._stats = GuardedStats()
        self._shown: dict[str, int] = {}
        self._kv_bytes = _kv_bytes_per_token(kv_cache_config, vllm_config.parallel_config.tensor_parallel_size)
        logger.info("duplex: guarded connector on KV groups %s", [group.as_json() for group in self._groups])

    # Arrival

    def on_new_request(self, request: Any) -> None:  # noqa: ANN401 - vLLM's Request
        """Check and prove the request's params once, on arrival.

        vLLM's own (base_scheduler.py) puts unchecked values into its heartbeat table, where a wrong type stops the
        engine; and its later hooks use the params as they come.
        """
        params = request.kv_transfer_params
        if not isinstance(params, dict) or not params:
            return
        turn = Turn(instructions(params), is_hand_off=bool(params.get(Params.DO_REMOTE_PREFILL)))
        self._turns[request.request_id] = turn
        usable = turn.instructions.renew is None and names_blocks(params) and is_addressed(params)
        if not usable:
            if turn.instructions.renew is None and names_blocks(params):
                turn.decision = Decision(Outcome.NONE, Reason.MALFORMED)
                turn.reason = Reason.MALFORMED
            request.kv_transfer_params = without_peer(params)
        # Drops a trailing token of a state-space model's prompt, so the proof comes after it.
        super().on_new_request(request)
        if usable:
            self._prove(request, turn)

    def _prove(self, request: Any, turn: Turn) -> None:  # noqa: ANN401 - vLLM's Request
        params = request.kv_transfer_params
        decision = self._decide(request, params, is_hand_off=turn.is_hand_off)
        turn.decision, turn.reason = decision, decision.reason
        # A hand-off is consumed by its one reader, so only a hold can be kept.
        keep = turn.instructions.keep and not turn.is_hand_off
        request.kv_transfer_params = prepared(params, decision, keep=keep, groups=len(self._groups))
        if decision.reason != Reason.EMPTY:
            logger.info(
                "duplex: %s: %s, %s: %d tokens proved, %d of them to load",
                request.request_id,
                decision.outcome.value,
                decision.reason.value,
                decision.proved,
                decision.tokens,
            )

    def _decide(self, request: Any, params: dict[str, Any], *, is_hand_off: bool) -> Decision:  # noqa: ANN401
        if not is_hand_off and (not self.is_bidirectional_kv_xfer_enabled or self.use_host_buffer):
            # vLLM starts no load then (update_state_after_alloc) but waits for one all the same.
            return Decision(Outcome.NONE, Reason.DISABLED)
        if params.get(Params.EXPIRY_TIME) is None:
            # vLLM reads without a deadline as if it had for ever; a guarded engine always writes one.
            return Decision(Outcome.NONE, Reason.MALFORMED)
        prompt = request.prompt_token_ids if self._is_provable(request) else None
        return decide(params, prompt, seed_bytes=self._seed(request), groups=self._groups)

    @staticmethod
    def _is_provable(request: Any) -> bool:  # noqa: ANN401 - vLLM's Request
        """Return whether token ids, adapter and salt are all that decides the request's KV."""
        return request.prompt_token_ids is not None and request.prompt_embeds is None and not request.mm_features

    @staticmethod
    def _seed(request: Any) -> bytes:  # noqa: ANN401 - vLLM's Request
        adapter = request.lora_request
        return seed(
            adapter=(adapter.lora_name, adapter.lora_path) if adapter else None,
            cache_salt=request.cache_salt,
        )

    # Admission

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:  # noqa: ANN401
        """Return how many proved tokens to load, and that loads run beside the engine's steps.

        vLLM's own trusts the params' count, has one threshold for all, and claims a load again when a request comes
        back after a failed load or a preemption (pull_scheduler.py).
        """
        turn = self._turns.get(request.request_id)
        if turn is None:
            return 0, False
        count = turn.tokens_to_load(num_computed_tokens, default_threshold=self.kv_recompute_threshold)
        return count, count > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:  # noqa: ANN401
        """Start the load, and let the worker know every request that may end in a hold.

        vLLM's own (pull_scheduler.py) registers only requests that name a peer, and its worker keeps deadlines only
        of registered ones: a turn that decode computed alone would pin its blocks for good.
        """
        turn = self._turns.get(request.request_id)
        keep_unread = turn is not None and turn.instructions.keep and not turn.is_hand_off and num_external_tokens == 0
        if keep_unread:
            # Nothing to load, and the hold is not to be consumed: vLLM would tell the holder.
            request.kv_transfer_params = without_peer(request.kv_transfer_params)
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if turn is not None:
            turn.admit(num_external_tokens)
            if self.is_bidirectional_kv_xfer_enabled:
                self._reqs_in_batch.add(request.request_id)

    def update_connector_output(self, connector_output: Any) -> None:  # noqa: ANN401 - vLLM's KVConnectorOutput
        """Note failed loads and freed holds."""
        super().update_connector_output(connector_output)
        for request_id in connector_output.failed_recving or ():
            if request_id in self._turns:
                self._turns[request_id].failed = True
        self._holds.freed(connector_output.finished_sending or (), now=time.perf_counter())

    # Finish

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:  # noqa: ANN401
        """Apply a lease message, or let vLLM keep the blocks and add the proof to what it publishes."""
        turn = self._turns.pop(request.request_id, None)
        if turn is None:
            return False, None
        if turn.instructions.renew is not None:
            # The worker takes these as it takes new deadlines (pull_worker.py, start_load_kv).
            self._reqs_need_send.update(self._holds.apply(turn.instructions.renew, now=time.perf_counter()))
            return False, None
        if turn.delivered_pull:
            self._stats.record(Metric.DUPLEX_PULLS, 1)
            self._stats.record(Metric.DUPLEX_PULLED_TOKENS, turn.pulled)
        if turn.decision is not None and turn.decision.proved and not turn.is_hand_off:
            self._stats.record(Metric.DUPLEX_PROVED_TOKENS, turn.decision.proved)
        is_prefill = bool(request.kv_transfer_params.get(Params.DO_REMOTE_DECODE))
        keeps_nothing = turn.instructions.ttl == 0 or not self._is_provable(request)
        if not is_prefill and keeps_nothing and not request.kv_transfer_params.get(Params.DO_REMOTE_PREFILL):
            # What vLLM does for a request that ends without a hand-off: its worker forgets it.
            self._stop_heartbeat(request.request_id)
            self._reqs_not_processed.add(request.request_id)
            return False, None
        held, answer = super().request_finished(request, block_ids)
        if not answer:
            return held, answer
        answer[Params.DUPLEX] = turn.report(request.num_prompt_tokens) if is_prefill else turn.complaint()
        if held and self._is_provable(request):
            self._publish(request, answer)
        if held and not is_prefill:
            self._hold(request.request_id, answer, turn.instructions)
        elif held:
            # vLLM tells nobody when a hand-off's lease ends; see nixl_worker.py.
            answer[Params.EXPIRY_TIME] = self._reqs_need_send[request.request_id]
        return held, answer

    def _publish(self, request: Any, answer: dict[str, Any]) -> None:  # noqa: ANN401 - vLLM's Request
        """Add the proof, over tokens whose KV is surely written: the last sampled one may still be in flight."""
        written = min(answer[Params.NUM_TOKENS], request.num_tokens - 1)
        if written < answer[Params.NUM_TOKENS] and all(group.kind is GroupKind.FULL for group in self._groups):
            answer[Params.NUM_TOKENS] = written
            answer[Params.BLOCK_IDS] = cut_blocks(answer[Params.BLOCK_IDS], written, self._groups)
        answer[Params.DUPLEX] |= publish(
            list(request.all_token_ids[: answer[Params.NUM_TOKENS]]),
            seed_bytes=self._seed(request),
            groups=self._groups,
            total_blocks=self.kv_cache_config.num_blocks,
        )

    def _hold(self, request_id: str, answer: dict[str, Any], wishes: Instructions) -> None:
        """Replace vLLM's one TTL for all by the request's own."""
        seconds = float(self.decoder_kv_blocks_ttl) if wishes.ttl is None else wishes.ttl
        deadline = time.perf_counter() + seconds
        self._reqs_need_send[request_id] = deadline
        answer[Params.EXPIRY_TIME] = deadline
        self._holds.open(request_id, tokens=answer[Params.NUM_TOKENS], deadline=deadline)

    # Metrics

    def take_stats(self) -> GuardedStats | None:
        """Return what happened since the last call; None where nothing did."""
        counts = self._holds.take_counts()
        for name, value in (
            (Metric.DUPLEX_RENEWALS, counts.renewals),
            (Metric.DUPLEX_RELEASES, counts.releases),
            (Metric.DUPLEX_LAPSES, counts.lapses),
        ):
            if value:
                self._stats.record(name, value)
        self._gauge(Metric.DUPLEX_HOLDS, len(self._holds))
        self._gauge(Metric.DUPLEX_HELD_TOKENS, self._holds.tokens)
        self._gauge(Metric.DUPLEX_KV_BYTES, self._kv_bytes)
        return None if self._stats.is_empty() else self._stats.clone_and_reset()

    def _gauge(self, name: str, value: int) -> None:
        """Report a gauge only when it moved: an idle engine with holds steps all the time."""
        if self._shown.get(name) != value:
            self._shown[name] = value
            self._stats.record(name, value)
