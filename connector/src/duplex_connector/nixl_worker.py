"""The worker side of the guarded connector: it moves KV as vLLM does, but knows kept pulls and ended leases.

Written against vLLM 0.32 and 0.33 (nixl/base_worker.py, nixl/pull_worker.py).
"""

from __future__ import annotations

import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.worker import NixlConnectorWorker
from vllm.logger import init_logger

from .handle import is_kept
from .heartbeats import Heartbeats
from .holds import RELEASED
from .leases import ended_in_time, may_begin
from .nixl_stats import GuardedStats

logger = init_logger(__name__)


class _WithoutKeptPulls:
    """A NIXL agent whose notifications leave out those of pulls that must not consume.

    vLLM's _get_new_notifs (nixl/pull_worker.py) would take such a notification for one that came after the lease had
    lapsed: an error in the log and a count that operators are told to alert on.
    """

    def __init__(self, agent: Any) -> None:  # noqa: ANN401 - NIXL's agent
        self._agent = agent

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the agent has
        return getattr(self._agent, name)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """Return the notifications by sender, without those of kept pulls."""
        arrived = self._agent.get_new_notifs()
        return {sender: [each for each in each_of if not is_kept(each)] for sender, each_of in arrived.items()}


class GuardedWorker(NixlConnectorWorker):  # type: ignore[misc] # vLLM is only there inside an engine image
    """vLLM's pull worker with multi-read holds."""

    nixl_wrapper: Any

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:  # noqa: ANN401 - vLLM's classes
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self.nixl_wrapper = _WithoutKeptPulls(self.nixl_wrapper)
        # Merged with the scheduler's by vLLM (v1/core/sched/scheduler.py), so both must have the same keys.
        self.xfer_stats = GuardedStats()
        self._heartbeats = Heartbeats(float(self._lease_extension))

    def _send_heartbeats(self, metadata: Any) -> None:  # noqa: ANN401 - vLLM's NixlConnectorMetadata
        """Remember which heartbeats were sent: vLLM's own skips peers that it has not met yet."""
        waiting = {
            (engine_id, request_id)
            for engine_id, beat in metadata.heartbeat_by_engine.items()
            for request_id in beat.req_ids
        }
        met = {name for name in waiting if name[0] in self._remote_agents}
        super()._send_heartbeats(metadata)
        if waiting:
            self._heartbeats.keep_only(waiting)
        for name in met:
            self._heartbeats.sent(*name, time.perf_counter())

    def _is_turn2_read_expired(self, meta: Any) -> bool:  # noqa: ANN401 - vLLM's ReqMeta
        """Return whether the peer may have freed the blocks by the end of a read that begins now.

        vLLM's own (pull_worker.py) knows the deadline of decode's holds only: a hand-off has none there and is read
        however late. A guarded prefill engine publishes one, and the heartbeats move it.
        """
        deadline = self._deadline(meta)
        if deadline is None or not meta.local_physical_block_ids:
            return False
        return not may_begin(time.perf_counter(), deadline)

    def _deadline(self, meta: Any) -> float | None:  # noqa: ANN401 - vLLM's ReqMeta
        """Return until when the peer surely keeps the blocks, on our clock; None where nobody says."""
        granted = meta.remote.blocks_expiry_time
        if granted is None:
            return None
        engine_id = meta.remote.engine_id
        own_clock = granted - self._engine_clock_offset[engine_id]
        return self._heartbeats.deadline(engine_id, meta.remote.request_id, own_clock)

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
        """Fail the reads that ended after their lease: vLLM's own (base_worker.py) takes whatever has come."""
        done, failed = super()._pop_done_transfers(transfers)
        if transfers is self._recving_transfers:
            late = {request_id for request_id in done if self._came_late(request_id)}
            for request_id in late:
                logger.warning("duplex: %s: its read ended after the lease; what it read is not used", request_id)
                self.xfer_stats.record_kv_expired_req()
            failed |= late
        return done, failed

    def _came_late(self, request_id: str) -> bool:
        meta = self._recving_metadata.get(request_id)
        deadline = self._deadline(meta) if meta is not None and meta.remote is not None else None
        return deadline is not None and not ended_in_time(time.perf_counter(), deadline)

    def _reap_expired_send_leases(self, done_sending: set[str]) -> None:
        """Free released holds before vLLM looks for expired ones: it would count and log each as a lost lease."""
        released = [request_id for request_id, until in self._reqs_to_send.items() if until == RELEASED]
        for request_id in released:
            del self._reqs_to_send[request_id]
            self._reqs_to_process.discard(request_id)
            self.consumer_notification_counts_by_req.pop(request_id, None)
            self.expected_consumer_notifications_by_req.pop(request_id, None)
            done_sending.add(request_id)
        super()._reap_expired_send_leases(done_sending)
