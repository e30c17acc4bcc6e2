"""The cluster that is measured on: pretended nodes and routers that answer, a thousand servings, and their fleets."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from duplex_connector.contract import Port
from duplex_kube.api import CONFIG_MAPS, KubeObject, Selection
from duplex_kube.client import Client, connect
from duplex_kube.reflector import Change, Reflector
from duplex_lab import processes
from duplex_lab.components import POD_RANGE
from duplex_lab.control_plane import ControlPlane
from duplex_lab.paths import REPOSITORY
from duplex_operator.reconcile.kinds import SERVINGS

from . import routers
from .processes import SYSTEM, wait_for
from .routers import SICK

NODES: Final = 60
NAMESPACES: Final = 10
PREFILL, DECODE, ROUTERS = 3, 6, 1
PODS_EACH: Final = PREFILL + DECODE + ROUTERS
SICK_SHARE: Final = 0.02
_AT_ONCE: Final = 16

Key = tuple[str, str]
T = TypeVar("T")


def serving(key: Key, ttl: int = 480) -> KubeObject:
    """Return a serving of ten pods."""
    namespace, name = key
    return {
        "apiVersion": SERVINGS.api_version,
        "kind": SERVINGS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"id": "tiny"},
            "engine": {"image": "duplex.local/simulator:dev", "version": "0.33.0"},
            "prefill": {"instanceType": "cpu", "replicas": PREFILL},
            "decode": {"instanceType": "cpu", "replicas": DECODE},
            "router": {"replicas": ROUTERS},
            "kvTransfer": {"bidirectional": {"ttlSeconds": ttl, "maxHoldSeconds": 3600}},
        },
    }


def keys_of(servings: int) -> list[Key]:
    """Return the names of so many servings, a few of them sick."""
    sick = round(servings * SICK_SHARE)
    return [
        (f"team-{number % NAMESPACES}", f"{SICK if number < sick else 'chat'}-{number:04}")
        for number in range(servings)
    ]


@dataclass
class World:
    """The running cluster, as a user of it sees it: applies servings, and sees when their routers are told.

    Its client runs in a thread of its own, so that what it measures does not wait for whoever measures.
    """

    cluster: ControlPlane
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _told: dict[tuple[Key, int], float] = field(default_factory=dict)
    _client: Client | None = None
    _readiness: Reflector[str] | None = None

    def __enter__(self) -> Self:
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._do(self._connect())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _connect(self) -> None:
        self._client = await connect(self.cluster.kubeconfig, user_agent="user")
        fleets = Reflector(
            self._client,
            CONFIG_MAPS,
            Selection(None, "duplex.dev/serving"),
            trim=_told_ttl,
            on_change=self._changed,
        )
        self._readiness = Reflector(
            self._client, SERVINGS, Selection(), trim=_reason_of_ready, on_change=lambda _change: None
        )
        self._watching = [self._loop.create_task(each.run()) for each in (fleets, self._readiness)]

    async def _disconnect(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.wait(self._watching)
        await self.client.close()

    @property
    def client(self) -> Client:
        """The user's connection."""
        if self._client is None:
            raise RuntimeError("only within the context")
        return self._client

    def _changed(self, change: Change[int]) -> None:
        if change.new is not None:
            namespace, name = change.key
            self._told.setdefault(((namespace, name.removesuffix("-fleet")), change.new), time.monotonic())

    def put_all(self, keys: list[Key]) -> None:
        """Apply servings, some at a time."""

        async def put() -> None:
            gate = asyncio.Semaphore(_AT_ONCE)

            async def one(key: Key) -> None:
                async with gate:
                    await self.client.apply(serving(key), SERVINGS, field_manager="user")

            await asyncio.gather(*map(one, keys))

        self._do(put())

    def edit(self, key: Key, ttl: int) -> float:
        """Change a serving's TTL; return when that was asked for."""
        began = time.monotonic()
        self._do(self.client.apply(serving(key, ttl), SERVINGS, field_manager="user"))
        return began

    def told(self, key: Key, ttl: int) -> float | None:
        """Return when a serving's routers were told this TTL; None: not yet."""
        return self._told.get((key, ttl))

    def serving(self) -> int:
        """Return how many servings are Ready."""
        if self._readiness is None:
            raise RuntimeError("only within the context")
        return sum(reason == "Serving" for reason in list(self._readiness.records.values()))


def _reason_of_ready(obj: KubeObject) -> str:
    listed = (obj.get("status") or {}).get("conditions") or []
    return next((str(each["reason"]) for each in listed if each["type"] == "Ready"), "")


def _told_ttl(config_map: KubeObject) -> int:
    document = json.loads((config_map.get("data") or {}).get("fleet.json", "{}"))
    return int((document.get("policy") or {}).get("ttlSeconds", 0))


@contextmanager
def running(folder: Path) -> Iterator[World]:
    """Run a control plane with the CRDs, nodes, namespaces and routers that answer."""
    subprocess.run(["ip", "route", "add", "local", POD_RANGE, "dev", "lo"], check=True)
    with ControlPlane(folder / "cluster", fake_nodes=NODES) as cluster:
        for crd in sorted((REPOSITORY / "crds").glob("*.yaml")):
            cluster.kubectl("apply", "--server-side", "-f", str(crd))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        for name in [SYSTEM, *(f"team-{number}" for number in range(NAMESPACES))]:
            cluster.kubectl("create", "namespace", name)
        command: list[str | Path] = [sys.executable, Path(routers.__file__), cluster.kubeconfig]
        answering = processes.start(command, cluster.log("routers"), dies_with_us=True)
        try:
            wait_for(lambda: _listens(Port.ADMIN), 60, "the routers' answers")
            with World(cluster) as world:
                yield world
        finally:
            answering.kill()
            answering.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
