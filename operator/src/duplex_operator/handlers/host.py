"""One operator process: probes, election and the watches, and while leading the queue and the workers."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, cast

import kopf

from duplex_kube.api import KubeApi, KubeObject
from duplex_kube.client import Credentials
from duplex_operator.handlers.watch import make_registry, make_settings
from duplex_operator.reconcile.children import Children
from duplex_operator.reconcile.reconciler import Reconciler
from duplex_operator.reconcile.resync import Resync, wait_for_kind
from duplex_operator.reconcile.router_stats import RouterStatsCache, StatsReader
from duplex_operator.reconcile.servings import Key, Servings, key_of
from duplex_operator.reconcile.workers import Workers
from duplex_operator.reconcile.writer import Writer
from duplex_operator.render import RenderContext
from duplex_operator.runtime.clock import Clock
from duplex_operator.runtime.health import Health, serve
from duplex_operator.runtime.lasting import lasting, outcome
from duplex_operator.runtime.leader import LeaderElection, Leadership, LeaseSettings
from duplex_operator.runtime.metrics import Metrics
from duplex_operator.runtime.settings import Settings
from duplex_operator.runtime.work_queue import WorkQueue

DEBOUNCE_SECONDS = 0.1
"""Changes come in groups: a short wait makes one reconcile of them."""

DISTRIBUTION = "duplex-serving"

log = logging.getLogger(__name__)


class Host:
    """Runs an operator. Setting ``stop`` ends it in order; anything wrong ends it with an exception."""

    def __init__(
        self,
        *,
        settings: Settings,
        api: KubeApi,
        credentials: Callable[[], Awaitable[Credentials]],
        stats_reader: StatsReader,
        clock: Clock,
        take_signals: Callable[[], None] = lambda: None,
    ) -> None:
        self.stop = asyncio.Event()
        self.health = Health()
        self.metrics = Metrics()
        self._servings = Servings()
        self.queue: WorkQueue[Key] = WorkQueue(clock, urgent=self._servings.edited)
        self._settings = settings
        self._api = api
        self._credentials = credentials
        self._stats_reader = stats_reader
        self._take_signals = take_signals
        self._clock = clock
        self._beat = clock.now()
        self._leading = False
        self._children = Children(api, settings.namespaces, clock, self._changed, nodes=settings.watch_nodes)
        self._resync = Resync(api, settings.namespaces, self._servings, self._changed, clock)
        lease = LeaseSettings(settings.lease_namespace, settings.lease_name, settings.identity)
        self._election = LeaderElection(api, lease, clock)
        self.health.add_limit("event loop", lambda: clock.now() - self._beat, 30, "it has not run")
        self.health.add_limit("reconcile", self.queue.longest_held, 180, "one serving has been worked on")
        self.health.add_limit("queue", self.queue.longest_wait, 600, "a serving has waited for a worker")
        self.health.add("watch of servings", self._resync.problem)

    async def run(self) -> None:
        """Take part until ``stop`` is set; raises what ended the work otherwise."""
        settings = self._settings
        async with serve(self.health, self.metrics, self._refresh, settings.health_host, settings.health_port) as port:
            log.info("probes and metrics on port %d", port)
            beating = asyncio.create_task(self._heart())
            watching = asyncio.create_task(self.watch())
            taking_part = asyncio.create_task(self._election.run(self.lead))
            stopping = asyncio.create_task(self.stop.wait())
            self.health.ready = True
            tasks = {beating, watching, taking_part, stopping}
            ended: set[asyncio.Task[Any]] = set()
            try:
                ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                log.info("ending")
                # The work ends, and gives the Lease up, before what it works on: kopf's end cancels other tasks too.
                taking_part.cancel()
                await asyncio.wait({taking_part})
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                log.info("ended")
        for task in ended - {stopping}:
            outcome(task)

    async def watch(self) -> None:
        """Keep the picture of all children and pods true until cancelled, leader or not: who takes over has it."""
        await wait_for_kind(self._api, self._settings.namespaces, self._clock)
        self.health.add_limit("watches", self._oldest_watch, 600, "a watch has heard nothing")
        await lasting(*(reflector.run() for reflector in self._children.reflectors))

    async def lead(self, leadership: Leadership) -> None:
        """Do a leader's work until cancelled, on what ``watch`` sees.

        Servings are watched by the leader alone: kopf, when it ends, cancels all that began after it in its loop, and
        the election must not be among that.
        """
        settings, clock = self._settings, self._clock
        api = self._api.guarded(leadership.check)
        reconciler = Reconciler(
            servings=self._servings,
            children=self._children,
            stats=RouterStatsCache(self._stats_reader, clock),
            writer=Writer(api, clock, self.metrics, settings.identity),
            context=RenderContext(
                router_image=settings.router_image,
                connector_image=settings.connector_image,
                operator_version=version(DISTRIBUTION),
                cluster_domain=settings.cluster_domain,
                operator_namespace=settings.lease_namespace,
            ),
            clock=clock,
            term=leadership.term,
        )
        # Decisions on half a picture would be wrong ones: nobody works before everything has been listed.
        await self._children.synced()
        gc.freeze()  # the picture stays for long: no collection need go through it
        self._leading = True
        workers = Workers(self.queue, reconciler, clock, self.metrics)
        await lasting(self._watch_servings(), self._resync.run(), workers.run(settings.workers))

    async def _watch_servings(self) -> None:
        servings = self._servings

        def on_event(event: kopf.RawEvent) -> None:
            obj = cast("KubeObject", event["object"])
            if event["type"] == "DELETED":
                if servings.remove(obj):
                    self._changed(key_of(obj))
            elif servings.put(obj):
                self._changed(key_of(obj))

        stop, started = asyncio.Event(), asyncio.Event()
        namespaces = self._settings.namespaces
        watching = asyncio.create_task(
            kopf.operator(
                registry=make_registry(self._credentials, on_event),
                settings=make_settings(),
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=stop,
                ready_flag=started,
            )
        )
        starting = asyncio.create_task(started.wait())
        try:
            await asyncio.wait({watching, starting}, return_when=asyncio.FIRST_COMPLETED)
            self._take_signals()  # which kopf has taken over from whoever had them
            await asyncio.shield(watching)
        finally:
            starting.cancel()
            stop.set()
            await asyncio.wait({watching})

    def _changed(self, key: Key) -> None:
        if self._leading:
            self.queue.add_after(key, DEBOUNCE_SECONDS)

    async def _heart(self) -> None:
        while True:
            self._beat = self._clock.now()
            await self._clock.sleep(1)

    def _oldest_watch(self) -> float:
        return max(reflector.age() for reflector in self._children.reflectors)

    def _refresh(self) -> None:
        metrics, queue = self.metrics, self.queue
        metrics.leader.set(self._election.leadership is not None)
        metrics.queue_depth.set(queue.depth)
        metrics.queue_wait.set(queue.longest_wait())
        metrics.in_flight.set(queue.longest_held())
        for reflector in self._children.reflectors:
            metrics.watch_age.labels(reflector.resource.plural).set(reflector.age())
