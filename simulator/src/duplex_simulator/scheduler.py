"""Who has blocks: the waiting queue, admission, growth, preemption. No time passes here and nothing is awaited."""

from __future__ import annotations

import contextlib
from collections import deque

from .blocks import BlockPool, NoFreeBlocksError
from .connector import Connector
from .request import EngineRequest, Status


class Scheduler:
    """First come, first served, as vLLM's default; when blocks run out, who came last gives way.

    `chunk`: tokens that one step prefills at most. Methods raise what a connector raises: that kills the engine.
    """

    def __init__(self, pool: BlockPool, connector: Connector | None, *, most_running: int, chunk: int) -> None:
        self._pool, self._connector = pool, connector
        self._most_running, self.chunk = most_running, chunk
        self.waiting: deque[EngineRequest] = deque()
        self.running: list[EngineRequest] = []
        self.preemptions = 0

    @property
    def loading(self) -> int:
        """Return how many requests have blocks and wait for KV from a peer."""
        return sum(request.status is Status.LOADING for request in self.running)

    def add(self, request: EngineRequest) -> None:
        """Queue a request."""
        self.waiting.append(request)
        self.admit_waiting()

    def admit_waiting(self) -> None:
        """Give blocks to waiting requests in their order, until one does not fit."""
        while self.waiting and len(self.running) < self._most_running and self._admit(self.waiting[0]):
            request = self.waiting.popleft()
            self.running.append(request)
            request.admitted.set()

    def _admit(self, request: EngineRequest) -> bool:
        kv = request.kv
        total = len(kv.tokens)
        # The last token is always computed: sampling needs it.
        local, hits = kv.find_cached(total - 1)
        loading = self._connector.tokens_to_load(request, local) if self._connector else 0
        kv.adopt(local, hits)
        try:
            if loading:
                kv.reserve(local + loading, held=local + loading)
            else:
                kv.reserve(min(total, local + self.chunk))
        except NoFreeBlocksError:
            kv.release()
            return False
        kv.settle(local)
        request.local, request.external = local, loading
        if request.cached is None:
            request.cached = local + loading
        request.pull = self._connector.admitted(request, loading) if self._connector else None
        request.status = Status.LOADING if loading else Status.RUNNING
        request.preempted = False
        request.admissions += 1
        return True

    def grow(self, request: EngineRequest, tokens: int) -> bool:
        """Make the request's tables cover `tokens` tokens; False where it was preempted itself to make room."""
        while not request.preempted:
            try:
                request.kv.reserve(tokens)
            except NoFreeBlocksError:
                self._preempt(self._last_running())
            else:
                return True
        return False

    def _last_running(self) -> EngineRequest:
        return next(request for request in reversed(self.running) if request.status is Status.RUNNING)

    def _preempt(self, victim: EngineRequest) -> None:
        self.preemptions += 1
        self.requeue(victim)
        victim.preempted = True

    def requeue(self, request: EngineRequest) -> None:
        """Take the request's blocks and put it first in the queue; it starts anew when it is admitted."""
        request.kv.release()
        request.status = Status.WAITING
        request.admitted.clear()
        self.running.remove(request)
        self.waiting.appendleft(request)

    def remove(self, request: EngineRequest) -> None:
        """Forget a request that ended; its blocks are the caller's matter."""
        with contextlib.suppress(ValueError):
            self.running.remove(request)
        with contextlib.suppress(ValueError):
            self.waiting.remove(request)
