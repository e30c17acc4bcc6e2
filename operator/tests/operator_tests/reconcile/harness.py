"""An operator in the test's own event loop against a real API server, with routers that a test speaks for."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from duplex_kube.api import CONFIG_MAPS, DEPLOYMENTS, KubeObject, Resource, Selection
from duplex_kube.client import Client, connect
from duplex_kube.errors import NotFoundError
from duplex_operator.handlers.host import Host
from duplex_operator.reconcile.kinds import SERVINGS
from duplex_operator.reconcile.writer import CHILD_MANAGER
from duplex_operator.runtime.clock import SystemClock
from duplex_operator.runtime.settings import Settings

PATIENCE_SECONDS = 100.0


def a_serving(name: str, namespace: str, **spec: Any) -> KubeObject:
    """Make a serving that asks for one pod of each part, on nodes without accelerators."""
    base: dict[str, Any] = {
        "model": {"id": "tiny"},
        "engine": {"image": "duplex.local/simulator:dev", "version": "0.33.0"},
        "prefill": {"instanceType": "cpu"},
        "decode": {"instanceType": "cpu"},
    }
    return {
        "apiVersion": SERVINGS.api_version,
        "kind": SERVINGS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": copy.deepcopy(base) | spec,
    }


class Routers:
    """What routers answer: by default that they have applied the newest fleet and served tokens on every revision."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self.silent = False
        self.deaf = False  # answers, but never acknowledges a fleet document
        self.served: Callable[[str], int] = lambda _revision: 1
        self.broken: list[dict[str, Any]] = []  # pairs that cannot reach each other

    async def __call__(self, _address: str) -> object:
        if self.silent:
            raise OSError("no route to host")
        fleets = await self._client.list(CONFIG_MAPS, Selection(self._namespace, "duplex.dev/serving"))
        documents = [json.loads(item["data"]["fleet.json"]) for item in fleets.items]
        revisions = [entry["name"] for document in documents for entry in document["revisions"]]
        return {
            "fleetVersion": [0, 0] if self.deaf else max(document["version"] for document in documents),
            "revisions": {name: {"servedTokens": self.served(name), "bytesMoved": 4096} for name in revisions},
            "brokenPairs": self.broken,
            "recentReuse": {"eligible": 7, "full": 4, "partial": 1, "rejected": {"expired": 2}},
            "reuse": {"eligible": 7, "full": 4, "partial": 1, "savedPrefillTokens": 512, "rejected": {"expired": 2}},
            "retention": {"conversations": 3, "tokens": 4096},
            "transport": {"backend": "UCX", "bytesMoved": 4096},
            "turns": 9,
        }


class World:
    """One namespace with servings, and operators that come and go."""

    def __init__(self, client: Client, kubeconfig: Path, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.routers = Routers(client, namespace)
        self._kubeconfig = kubeconfig

    @asynccontextmanager
    async def operator(self, identity: str = "operator-a", **settings: Any) -> AsyncIterator[Host]:
        """Run an operator; leaving the context ends it in order."""
        async with await connect(self._kubeconfig, user_agent="duplex-operator") as own:
            host = self.host(own, identity, **settings)
            running = asyncio.create_task(host.run())
            try:
                yield host
            finally:
                host.stop.set()
                await running

    @asynccontextmanager
    async def second_operator(self, identity: str) -> AsyncIterator[Host]:
        """Run another operator, in a thread of its own: kopf, when it ends, cancels what began after it in its loop."""
        started: asyncio.Queue[tuple[asyncio.AbstractEventLoop, Host]] = asyncio.Queue()
        here = asyncio.get_running_loop()

        async def run() -> None:
            async with await connect(self._kubeconfig, user_agent="duplex-operator") as own:
                host = self.host(own, identity, Routers(own, self.namespace))
                here.call_soon_threadsafe(started.put_nowait, (asyncio.get_running_loop(), host))
                await host.run()

        running = asyncio.create_task(asyncio.to_thread(asyncio.run, run()))
        loop, host = await started.get()
        try:
            yield host
        finally:
            loop.call_soon_threadsafe(host.stop.set)
            await running

    def host(self, client: Client, identity: str, routers: Routers | None = None, **settings: Any) -> Host:
        """Make an operator on a given client."""
        values: dict[str, Any] = {
            "router_image": "duplex.local/router:dev",
            "connector_image": "duplex.local/connector:dev",
            "identity": identity,
            "lease_namespace": self.namespace,
            "namespaces": (self.namespace,),
            "health_port": 0,
        }
        return Host(
            settings=Settings(**(values | settings)),
            api=client,
            credentials=client.credentials,
            stats_reader=routers or self.routers,
            clock=SystemClock(),
        )

    async def put(self, serving: KubeObject) -> KubeObject:
        """Apply a serving as its user."""
        return await self.client.apply(serving, SERVINGS, field_manager="user")

    async def serving(self, name: str) -> KubeObject:
        return await self.client.get(SERVINGS, self.namespace, name)

    async def names(self, resource: Resource, serving: str) -> set[str]:
        """Return the names of a serving's children of one kind."""
        found = await self.client.list(resource, Selection(self.namespace, f"duplex.dev/serving={serving}"))
        return {item["metadata"]["name"] for item in found.items}

    async def engines(self, serving: str) -> dict[tuple[str, str], KubeObject]:
        """Return the engine Deployments by role and revision."""
        found = await self.client.list(DEPLOYMENTS, Selection(self.namespace, f"duplex.dev/serving={serving}"))
        labels = [(item["metadata"]["labels"], item) for item in found.items]
        return {
            (label["duplex.dev/role"], label["duplex.dev/revision"]): item
            for label, item in labels
            if "duplex.dev/revision" in label
        }

    async def fleet(self, serving: str) -> dict[str, Any]:
        found = await self.client.get(CONFIG_MAPS, self.namespace, f"{serving}-fleet")
        document: dict[str, Any] = json.loads(found["data"]["fleet.json"])
        return document

    async def condition(self, serving: str, kind: str) -> tuple[str, str]:
        """Return a condition's status and reason; empty texts where it is absent."""
        conditions = ((await self.serving(serving)).get("status") or {}).get("conditions") or []
        return next(((one["status"], one["reason"]) for one in conditions if one["type"] == kind), ("", ""))

    async def rolled_out(self, serving: str) -> None:
        """Wait until the newest spec runs and serves."""

        async def done() -> bool:
            obj = await self.serving(serving)
            seen = (obj.get("status") or {}).get("observedGeneration") == obj["metadata"]["generation"]
            return (
                seen
                and await self.condition(serving, "Ready") == ("True", "Serving")
                and not (await self.condition(serving, "Reconciling"))[0]
            )

        await eventually(done)

    async def versions(self, *resources: Resource, serving: str) -> dict[tuple[str, str], str]:
        """Return the resourceVersion of each child, of Deployments the generation (their status changes on its own)."""
        versions = {}
        for resource in resources:
            found = await self.client.list(resource, Selection(self.namespace, f"duplex.dev/serving={serving}"))
            for item in found.items:
                metadata = item["metadata"]
                value = metadata["generation"] if resource is DEPLOYMENTS else metadata["resourceVersion"]
                versions[resource.kind, metadata["name"]] = str(value)
        return versions


async def eventually(check: Callable[[], Awaitable[bool]], *, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until ``check`` is true; an object that is not there yet counts as false."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        try:
            if await check():
                return
        except NotFoundError:
            pass
        assert loop.time() < end, f"not within {seconds} s: {check}"
        await asyncio.sleep(0.1)


__all__ = ["CHILD_MANAGER", "World", "a_serving", "eventually"]
