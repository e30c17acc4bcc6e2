"""A reconciler on the fake API server and a fake clock: no kopf, no HTTP, faults on call."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from duplex_connector.contract import Annotation
from duplex_kube.api import DEPLOYMENTS, KubeObject
from duplex_operator.reconcile.children import Children
from duplex_operator.reconcile.kinds import SERVINGS
from duplex_operator.reconcile.reconciler import Reconciler
from duplex_operator.reconcile.router_stats import RouterStatsCache
from duplex_operator.reconcile.servings import Key, Servings
from duplex_operator.reconcile.writer import Writer
from duplex_operator.render import RenderContext
from duplex_operator.runtime.metrics import Metrics
from operator_tests.fake_clock import FakeClock, settle
from operator_tests.fake_kube import Cluster, FakeKube

KEY: Key = ("n", "chat")


class Inner:
    """One life of an operator: caches, reconciler, and the keys that watches asked for."""

    def __init__(self, cluster: Cluster, clock: FakeClock, term: int = 1) -> None:
        self.api = FakeKube(cluster)
        self.clock = clock
        self.asked: list[Key] = []
        self.stats: Any = OSError("no router yet")
        self.servings = Servings()
        self.children = Children(self.api, ["n"], clock, self.asked.append, nodes=True)
        self.writer = Writer(self.api, clock, Metrics(), "test")
        self.reconciler = Reconciler(
            servings=self.servings,
            children=self.children,
            stats=RouterStatsCache(self._read, clock),
            writer=self.writer,
            context=RenderContext(router_image="router:1", connector_image="connector:1", operator_version="0.1.0"),
            clock=clock,
            term=term,
        )

    async def _read(self, _address: str) -> object:
        if isinstance(self.stats, Exception):
            raise self.stats
        return self.stats

    async def look(self) -> None:
        """Let the watches catch up, and take servings over as kopf would."""
        await settle()
        for (plural, _, _), obj in list(self.api.cluster.objects.items()):
            if plural == SERVINGS.plural:
                self.servings.put(copy.deepcopy(obj))
        for key in list(self.servings):
            if (SERVINGS.plural, *key) not in self.api.cluster.objects:
                gone = self.servings.get(key)
                assert gone is not None
                self.servings.remove(gone)

    async def reconcile(self, key: Key = KEY) -> float | None:
        await self.look()
        after = await self.reconciler.reconcile(key)
        await settle()
        return after

    def writes(self) -> int:
        return len(self.api.cluster.writes)


@asynccontextmanager
async def an_operator(cluster: Cluster, clock: FakeClock, term: int = 1) -> AsyncIterator[Inner]:
    inner = Inner(cluster, clock, term)
    tasks = [asyncio.create_task(reflector.run()) for reflector in inner.children.reflectors]
    try:
        await inner.children.synced()
        yield inner
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def the_serving(**spec: Any) -> KubeObject:
    base: dict[str, Any] = {
        "model": {"id": "tiny"},
        "engine": {"image": "engine:0.33.0"},
        "prefill": {"instanceType": "cpu"},
        "decode": {"instanceType": "cpu"},
    }
    return {
        "apiVersion": SERVINGS.api_version,
        "kind": SERVINGS.kind,
        "metadata": {"name": "chat", "namespace": "n"},
        "spec": base | spec,
    }


async def put(cluster: Cluster, obj: KubeObject) -> KubeObject:
    return await FakeKube(cluster).apply(obj, SERVINGS, field_manager="user")


def make_ready(cluster: Cluster) -> None:
    """Do what the Deployment controller and kubelets do, at once."""
    for (plural, _, _), obj in list(cluster.objects.items()):
        if plural == DEPLOYMENTS.plural:
            size, generation = obj["spec"]["replicas"], obj["metadata"]["generation"]
            status = {"readyReplicas": size, "updatedReplicas": size, "observedGeneration": generation}
            if obj.get("status") != status:
                cluster.put(DEPLOYMENTS, copy.deepcopy(obj) | {"status": status}, "MODIFIED")


def content(cluster: Cluster) -> dict[str, Any]:
    """Return what the children are, without what counts writes."""
    result = {}
    for (plural, _, name), obj in cluster.objects.items():
        if plural in {"leases", "events", SERVINGS.plural}:
            continue
        metadata = {k: v for k, v in obj["metadata"].items() if k not in {"uid", "resourceVersion", "generation"}}
        # A digest of what was applied, its owner's uid included, which is another in another cluster.
        metadata["annotations"] = {k: v for k, v in metadata.get("annotations", {}).items() if k != Annotation.APPLIED}
        body = {k: v for k, v in obj.items() if k not in {"metadata", "status"}}
        if name.endswith("-fleet"):
            document = json.loads(body["data"]["fleet.json"])
            body["data"] = {**document, "version": None, "serving": None}
        result[plural, name] = {"metadata": metadata, **body}
    return result
