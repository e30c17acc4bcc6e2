"""The workers: they take keys from the queue, reconcile them, and see to it that nothing is lost or blocks the rest."""

import asyncio
import logging
import random

from duplex_kube.errors import ConflictError, KubeError
from duplex_operator.reconcile.reconciler import Reconciler
from duplex_operator.reconcile.servings import Key
from duplex_operator.runtime.clock import Clock
from duplex_operator.runtime.lasting import lasting
from duplex_operator.runtime.leader import LostLeadershipError
from duplex_operator.runtime.metrics import Metrics
from duplex_operator.runtime.work_queue import WorkQueue

LONGEST_RECONCILE_SECONDS = 60.0

log = logging.getLogger(__name__)


class Workers:
    """A pool over one queue. One serving's failure is put off and costs the others nothing."""

    def __init__(self, queue: WorkQueue[Key], reconciler: Reconciler, clock: Clock, metrics: Metrics) -> None:
        self._queue = queue
        self._reconciler = reconciler
        self._clock = clock
        self._metrics = metrics

    async def run(self, number: int) -> None:
        """Work until cancelled; ends by itself only with ``LostLeadershipError``."""
        await lasting(*(self._work() for _ in range(number)))

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                await self._once(key)
            finally:
                self._queue.done(key)

    async def _once(self, key: Key) -> None:
        started = self._clock.now()
        try:
            async with asyncio.timeout(LONGEST_RECONCILE_SECONDS):
                after = await self._reconciler.reconcile(key)
        except LostLeadershipError:
            raise
        except (KubeError, TimeoutError) as error:
            self._put_off(key, "conflict" if isinstance(error, ConflictError) else "error", error)
        except Exception as error:
            log.exception("reconcile of %s/%s", *key)
            self._put_off(key, "defect", error)
        else:
            self._metrics.reconciles.labels("success").inc()
            if after is None:
                self._queue.forget(key)
            else:
                self._queue.reset(key)
                self._queue.add_after(key, after * random.uniform(0.9, 1.1))  # noqa: S311 - spreads load
        finally:
            self._metrics.duration.observe(self._clock.now() - started)

    def _put_off(self, key: Key, outcome: str, error: Exception) -> None:
        self._metrics.reconciles.labels(outcome).inc()
        self._metrics.retries.inc()
        seconds = self._queue.retry(key)
        log.warning("reconcile of %s/%s, again in %.0f s: %s", *key, seconds, error or type(error).__name__)
