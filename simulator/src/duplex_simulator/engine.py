"""The engine: requests through queue, load, prefill and decode, and the blocks they leave for peers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Final

from duplex_connector.contract import KEEP_PREFIX, Metric

from .blocks import BlockPool
from .chain import fold
from .clock import Clock
from .connector import Connector
from .metrics import Metrics
from .model import LanguageModel
from .profile import Profile
from .request import EngineRequest, Status, Token
from .scheduler import Scheduler
from .sidechannel import TransferError
from .tokenizer import EOS
from .transfers import ExpiredError, Transfers

logger = logging.getLogger(__name__)

_REAP_SECONDS: Final = 0.05


class EngineDeadError(Exception):
    """The engine process is gone; every request fails, and so does /health."""

    MESSAGE: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class LoadFailedError(Exception):
    """KV could not be loaded and the policy is `fail`: HTTP 500 with no reason, as vLLM answers."""


class Engine:
    """One engine process, with or without a connector."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        model: LanguageModel,
        profile: Profile,
        clock: Clock,
        metrics: Metrics,
        max_length: int,
        most_running: int,
        chunk: int,
        connector: Connector | None,
        transfers: Transfers | None,
        time_scale: float = 1.0,
    ) -> None:
        self.pool, self.model, self.clock, self.metrics = pool, model, clock, metrics
        self.connector, self.max_length = connector, max_length
        self.scheduler = Scheduler(pool, connector, most_running=most_running, chunk=chunk)
        self.dead: Exception | None = None
        self.draining = False
        self.corrupt_answers = 0
        self.freed_reads = 0
        self._profile, self._transfers, self._scale = profile, transfers, time_scale
        self._device = asyncio.Lock()
        self._death = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to end holds whose time is up."""
        self._spawn(self._reap())

    async def close(self) -> None:
        """Stop every task of the engine's own."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._transfers is not None:
            await self._transfers.close()

    async def drained(self) -> None:
        """Return once nothing runs and nothing is held: what `--shutdown-timeout` waits for."""
        self.draining = True
        while self.scheduler.running or self.scheduler.waiting or (self.connector and len(self.connector.holds)):
            await self.clock.sleep(_REAP_SECONDS)

    async def wait_dead(self) -> None:
        """Return once the engine is dead."""
        await self._death.wait()

    def free_blocks(self, tables: list[list[int]]) -> None:
        """Take back the blocks of a hold that ended."""
        for table in tables:
            self.pool.release(table)
        self._admit()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _reap(self) -> None:
        while True:
            if self.connector is not None:
                self.connector.holds.reap(self.clock.now())
            await asyncio.sleep(_REAP_SECONDS)

    def _die(self, error: Exception) -> EngineDeadError:
        if self.dead is None:
            logger.error("EngineCore encountered a fatal error: %r", error, exc_info=error)
            self.dead = error
            self._death.set()
            for request in self.scheduler.waiting:
                request.admitted.set()
        return EngineDeadError(EngineDeadError.MESSAGE)

    def _check_alive(self) -> None:
        if self.dead is not None:
            raise EngineDeadError(EngineDeadError.MESSAGE)

    def _admit(self) -> None:
        try:
            self.scheduler.admit_waiting()
        except Exception as error:  # noqa: BLE001 - whatever a connector raises kills vLLM's engine process
            self._die(error)

    async def _sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds * self._scale)
        self._check_alive()

    # -- peers (the Holder of the side channel) ----------------------------------------------------------------------

    def read_blocks(self, request_id: str, block_ids: list[list[int]]) -> list[list[bytes]]:
        """Return the content of blocks for a peer.

        Real NIXL reads whatever the memory holds by then. Here a read under a request id that holds nothing, or of a
        block outside that hold, always returns scrap, so that luck hides no late read.
        """
        hold = self.connector.holds.get(request_id.removeprefix(KEEP_PREFIX)) if self.connector else None
        held = {block for table in hold.tables for block in table} if hold is not None else set()
        groups = []
        for ids in block_ids:
            blocks = []
            for block in ids:
                content = self.pool.read(block)
                if block not in held:
                    self.freed_reads += 1
                    content = fold(content).to_bytes(8, "little") * max(1, len(content) // 8)
                blocks.append(content)
            groups.append(blocks)
        return groups

    def notified(self, text: str) -> None:
        """Take a peer's notification."""
        if self.connector is not None:
            self.connector.holds.notified(text, self.clock.now())

    # -- requests ----------------------------------------------------------------------------------------------------

    def reject(self, params: dict[str, Any]) -> None:
        """Take the params of a request that the front end refused."""
        if self.connector is None or self.dead is not None:
            return
        try:
            pull = self.connector.rejected(params)
        except Exception as error:  # noqa: BLE001 - as above
            self._die(error)
            return
        if pull is not None and self._transfers is not None:
            self._transfers.notify(pull)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Token, None]:
        """Yield the request's tokens; closing the iterator early aborts the request.

        Raises EngineDeadError and LoadFailedError.
        """
        self._check_alive()
        request.arrived_at = self.clock.now()
        if self.draining:
            request.status = Status.ABORTED
            yield Token(-1, Status.ABORTED)
            return
        await self._sleep(self._profile.frontend_seconds(request.prompt_tokens))
        heartbeats = self._arrive(request)
        try:
            while not request.ended:
                await self._compute(request, heartbeats)
                yield self._sample(request)
        except LoadFailedError:
            request.status = Status.ERROR
            raise
        finally:
            if heartbeats is not None:
                heartbeats.cancel()
            if request.status in {Status.WAITING, Status.LOADING, Status.RUNNING, Status.ERROR}:
                self._abort(request)

    def _arrive(self, request: EngineRequest) -> asyncio.Task[None] | None:
        try:
            if self.connector is not None:
                self.connector.arrived(request)
            beats = self._transfers.heartbeats(request.params) if self._transfers is not None else None
            self.scheduler.add(request)
        except Exception as error:
            raise self._die(error) from error
        return beats

    def _abort(self, request: EngineRequest) -> None:
        """Free an unfinished request's blocks; a load under way keeps them until it reports (vllm#46283)."""
        waiting, loading = request.status is Status.WAITING, request.status is Status.LOADING
        if request.status is not Status.ERROR:
            request.status = Status.ABORTED
            self.metrics.add("vllm:request_success", 1, finished_reason="abort")
        self.scheduler.remove(request)
        if waiting and request.params and self.connector is not None:
            self.reject(request.params)
        if not loading:
            request.kv.release()
        self._admit()

    # -- loading -----------------------------------------------------------------------------------------------------

    async def _load(self, request: EngineRequest) -> bool:
        """Wait for the request's KV from a peer; return whether it came.

        Where no transfer was started, the wait is for ever (traps 2 to 4).
        """
        pull = request.pull
        if pull is None or self._transfers is None:
            logger.warning("%s waits for remote KV that nobody fetches", request.request_id)
            await self._death.wait()
            self._check_alive()
            return False
        task = self._transfers.pull(request, pull)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: self._release_orphan(request, done))
            raise
        except TransferError as error:
            self._load_failed(request, error)
            return False
        except Exception as error:
            raise self._die(error) from error
        return True

    def _release_orphan(self, request: EngineRequest, done: asyncio.Task[None]) -> None:
        """Free the blocks of a request that was aborted while it loaded; how the load ended no longer matters."""
        if not done.cancelled():
            done.exception()
        request.kv.release()
        self._admit()

    def _load_failed(self, request: EngineRequest, error: TransferError) -> None:
        logger.warning("%s: KV load failed: %s", request.request_id, error)
        if not isinstance(error, ExpiredError):
            self.metrics.add(Metric.NIXL_FAILED, 1)
        if self.connector is None:
            return
        self.connector.pull_failed(request)
        settings = self.connector.settings
        if not settings.recompute:
            request.status = Status.ERROR
            self.metrics.add("vllm:request_success", 1, finished_reason="error")
            raise LoadFailedError(str(error))
        request.external, request.cached = 0, None
        self.scheduler.requeue(request)
        self._admit()

    # -- computing ---------------------------------------------------------------------------------------------------

    async def _compute(self, request: EngineRequest, heartbeats: asyncio.Task[None] | None) -> None:
        """Bring the KV of all the request's tokens about, but the one to be sampled next."""
        kv = request.kv
        while kv.computed < len(kv.tokens) or request.status is not Status.RUNNING:
            await request.admitted.wait()
            self._check_alive()
            if request.status is Status.LOADING:
                if await self._load(request):
                    self._loaded(request)
                    if heartbeats is not None:
                        heartbeats.cancel()
                continue
            if request.status is not Status.RUNNING:
                continue
            if request.pull is not None and self._transfers is not None:
                # Nothing to load, but the peer must hear that its blocks may go.
                self._transfers.notify(request.pull)
                request.pull = None
            await self._step(request)

    def _loaded(self, request: EngineRequest) -> None:
        kv = request.kv
        kv.settle(request.local + request.external)
        kv.remember()
        if kv.computed >= len(kv.tokens):
            kv.settle(len(kv.tokens) - 1)
        request.pull = None
        request.status = Status.RUNNING

    async def _step(self, request: EngineRequest) -> None:
        kv = request.kv
        upto = min(len(kv.tokens), kv.computed + self.scheduler.chunk)
        if not self._grow(request, upto):
            return
        new, admission = upto - kv.computed, request.admissions
        if request.output:
            await self._sleep(self._profile.decode_seconds() if new == 1 else self._prefill(request, new))
        else:
            async with self._device:
                await self._sleep(self._prefill(request, new))
        if request.preempted or request.admissions != admission:
            return
        kv.compute(upto)
        kv.remember()

    def _grow(self, request: EngineRequest, tokens: int) -> bool:
        grown = self.scheduler.grow(request, tokens)
        if not grown:
            self._admit()
        return grown

    def _prefill(self, request: EngineRequest, new: int) -> float:
        """Return a prefill step's time, so that the steps of a chunked prefill add up to the time of one.

        One token on top of loaded KV is what decode does in a step.
        """
        if new == 1 and request.external:
            return self._profile.decode_seconds()
        held = min(request.local + request.external, request.kv.computed)
        done = request.kv.computed - held
        return self._profile.prefill_seconds(done + new, held) - self._profile.prefill_seconds(done, held)

    def _sample(self, request: EngineRequest) -> Token:
        kv, sampling = request.kv, request.sampling
        marked = kv.tainted and not request.marked
        if marked:
            request.marked = True
            self.corrupt_answers += 1
            logger.error("%s reads KV that was not computed from its tokens", request.request_id)
        if not request.output:
            request.first_token_at = self.clock.now()
            self.metrics.observe("vllm:time_to_first_token_seconds", request.first_token_at - request.arrived_at)
            self._count_sources(request)
        token = self.model.next_token(kv.last_cell(), kv.tokens, marked=marked)
        if sampling.forced and not marked:
            at = len(request.output) - request.marked
            token = sampling.forced[at] if at < len(sampling.forced) else EOS
        if token == EOS and (sampling.ignore_eos or len(request.output) < sampling.min_tokens):
            token = self.model.tokenizer.word(kv.last_cell() >> 8, spaced=True)
        kv.append(token)
        request.output.append(token)
        reason: int | None = None
        if token == EOS and not sampling.ignore_eos:
            request.status = Status.STOPPED
        elif token in sampling.stop_token_ids:
            request.status, reason = Status.STOPPED, token
        elif len(request.output) >= sampling.max_tokens or len(kv.tokens) >= self.max_length:
            request.status = Status.LENGTH
        self.metrics.add("vllm:generation_tokens", 1)
        if not request.ended:
            return Token(token)
        return Token(token, request.status, reason, self._finish(request))

    def _count_sources(self, request: EngineRequest) -> None:
        local, external = request.local, request.external
        computed = request.prompt_tokens - local - external
        self.metrics.add("vllm:prompt_tokens", request.prompt_tokens)
        for source, count in (
            ("local_compute", computed),
            ("local_cache_hit", local),
            ("external_kv_transfer", external),
        ):
            self.metrics.add(Metric.PROMPT_TOKENS_BY_SOURCE, max(0, count), source=source)
        self.metrics.add("vllm:prefix_cache_queries", request.prompt_tokens)
        self.metrics.add("vllm:prefix_cache_hits", local)
        self.metrics.add("vllm:external_prefix_cache_queries", request.prompt_tokens - local)
        self.metrics.add("vllm:external_prefix_cache_hits", external)

    def _finish(self, request: EngineRequest) -> dict[str, Any] | None:
        held, params = False, None
        try:
            if self.connector is not None:
                held, params = self.connector.finished(request)
        except Exception as error:
            raise self._die(error) from error
        self.scheduler.remove(request)
        if not held:
            request.kv.release()
        self.metrics.add("vllm:request_success", 1, finished_reason=request.status.value)
        now = self.clock.now()
        self.metrics.observe("vllm:e2e_request_latency_seconds", now - request.arrived_at)
        self.metrics.observe("vllm:request_decode_time_seconds", now - request.first_token_at)
        self._admit()
        return params
