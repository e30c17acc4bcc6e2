"""Transfers between engines: reads of a peer's blocks, notices that it may free them, heartbeats."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from typing import Any, Final, NoReturn

from duplex_connector.contract import Metric, Params
from duplex_connector.heartbeats import Heartbeats
from duplex_connector.leases import ended_in_time, may_begin

from .blocks import BlockPool
from .clock import Clock
from .holds import HEARTBEAT_PREFIX
from .metrics import Metrics
from .profile import Profile
from .pull import Pull
from .request import EngineRequest
from .sidechannel import SideChannelClient, TransferError

logger = logging.getLogger(__name__)

_ADDRESS: Final = (Params.ENGINE_ID, Params.REQUEST_ID, Params.HOST, Params.PORT, Params.TP_SIZE)


class ExpiredError(TransferError):
    """The peer's deadline is too near to begin a read, or passed before it had ended."""


class Transfers:
    """What one engine asks of its peers.

    `lease`: seconds of a hand-off's lease; `scale`: factor on transfer times. `guarded`: what was read after the peer's
    deadline is not used.
    """

    def __init__(
        self,
        peers: SideChannelClient,
        pool: BlockPool,
        clock: Clock,
        metrics: Metrics,
        profile: Profile,
        *,
        lease: float,
        scale: float,
        guarded: bool,
    ) -> None:
        self._peers, self._pool, self._clock, self._metrics = peers, pool, clock, metrics
        self._profile, self._lease, self._scale, self._guarded = profile, lease, scale, guarded
        self._tasks: set[asyncio.Task[None]] = set()
        self._heartbeats = Heartbeats(lease * 2 // 3)
        self._waiting: set[tuple[str, str]] = set()

    async def close(self) -> None:
        """Stop every transfer and drop the peers."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._peers.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def heartbeats(self, params: dict[str, Any] | None) -> asyncio.Task[None] | None:
        """Keep the lease of the hand-off that a decode leg names, until the task is cancelled.

        None where the params name none, or lack a key: vLLM then sends no heartbeats.
        """
        if not params or not params.get(Params.DO_REMOTE_PREFILL):
            return None
        if any(params.get(key) is None for key in _ADDRESS):
            return None
        engine_id, request_id, host, port, _ = (params[key] for key in _ADDRESS)
        self._waiting.add((engine_id, request_id))
        return self._spawn(self._beat(engine_id, request_id, host, port))

    async def _beat(self, engine_id: str, request_id: str, host: str, port: int) -> None:
        try:
            while True:
                await self._clock.sleep(self._lease // 6)
                moment = self._clock.now()
                try:
                    await self._peers.notify(engine_id, host, port, f"{HEARTBEAT_PREFIX}{request_id}")
                    self._heartbeats.sent(engine_id, request_id, moment)
                except TransferError as error:
                    logger.warning("heartbeat failed: %s", error)
        finally:
            self._waiting.discard((engine_id, request_id))
            self._heartbeats.keep_only(self._waiting)

    def notify(self, pull: Pull) -> None:
        """Tell the peer that the read is complete, or that there is none and its blocks may go."""
        self._spawn(self._notify(pull))

    async def _notify(self, pull: Pull) -> None:
        try:
            await self._peers.notify(pull.engine_id, pull.host, pull.port, f"{pull.request_id}:1")
        except TransferError as error:
            self._metrics.add("vllm:nixl_num_failed_notifications", 1)
            self._metrics.add(Metric.NIXL_FAILED, 1)
            logger.warning("completion notification failed: %s", error)

    def pull(self, request: EngineRequest, pull: Pull) -> asyncio.Task[None]:
        """Begin to read the peer's blocks into the request's.

        The task raises TransferError where that fails, and anything else where it kills the engine.
        """
        return self._spawn(self._pull(request, pull))

    async def _pull(self, request: EngineRequest, pull: Pull) -> None:
        started = self._clock.now()
        offset = await self._peers.offset(pull.engine_id, pull.host, pull.port)
        if not may_begin(self._clock.now(), self._deadline(pull, offset)):
            self._decline("Declining expired remote read")
        remote = pull.aligned()
        await self._clock.sleep(self._profile.transfer_seconds(request.external) * self._scale)
        groups = await self._peers.read(pull.engine_id, pull.host, pull.port, pull.request_id, remote)
        if self._guarded and not ended_in_time(self._clock.now(), self._deadline(pull, offset)):
            self._decline("the read ended after the lease")
        for ids, blocks in zip(pull.local, groups, strict=True):
            for block, content in zip(ids, blocks, strict=True):
                self._pool.write(block, 0, content)
        self.notify(pull)
        self._metrics.observe("vllm:nixl_xfer_time_seconds", self._clock.now() - started)
        self._metrics.observe(Metric.NIXL_BYTES, request.external * self._profile.kv_bytes_per_token)
        self._metrics.observe("vllm:nixl_num_descriptors", sum(map(len, pull.local)))

    def _deadline(self, pull: Pull, offset: float) -> float:
        """Return until when the peer surely keeps the blocks, on our clock; for ever where its params say nothing."""
        if pull.expires is None:
            return math.inf
        return self._heartbeats.deadline(pull.engine_id, pull.request_id, pull.expires - offset)

    def _decline(self, why: str) -> NoReturn:
        self._metrics.add(Metric.NIXL_EXPIRED, 1)
        raise ExpiredError(why)
