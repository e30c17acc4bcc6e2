"""The API server's rules in memory, for tests that inject faults which a real one does not have on call.

What it keeps true: optimistic concurrency, uids, generations, server-side apply with removal of dropped fields,
selectors, chunked lists, watches with history that can be compacted. What it leaves out (schemas, defaulting, garbage
collection) is tested against the real API server.
"""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from itertools import count
from typing import Any

from duplex_kube.api import KubeObject, ListPage, Preconditions, Resource, Selection, WatchEvent, WriteGuard
from duplex_kube.errors import ConflictError, GoneError, KubeError, NotFoundError

Identity = tuple[str, str, str]  # plural, namespace, name


class Cluster:
    """What all clients of one fake API server share."""

    def __init__(self) -> None:
        self.objects: dict[Identity, KubeObject] = {}
        self.applied: dict[tuple[Identity, str, str], KubeObject] = {}
        self.history: list[tuple[int, str, Resource, KubeObject]] = []
        self.writes: list[tuple[str, str, str]] = []  # verb, plural, name
        self.versions = count(1)
        self.version = 0
        self.compacted = 0
        self.news = asyncio.Event()
        self.breaks: list[KubeError] = []
        # Called before each request with its verb, plural and name; may raise.
        self.before: Callable[[str, str, str], None] = lambda _verb, _plural, _name: None

    def put(self, resource: Resource, obj: KubeObject, kind: str) -> KubeObject:
        self.version = next(self.versions)
        obj["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            self.objects.pop(_identity(resource, obj))
        else:
            self.objects[_identity(resource, obj)] = obj
        self.history.append((self.version, kind, resource, copy.deepcopy(obj)))
        self.news.set()
        self.news = asyncio.Event()
        return copy.deepcopy(obj)

    def break_watches(self, error: KubeError) -> None:
        """End every watch with ``error``."""
        self.breaks.append(error)
        self.news.set()
        self.news = asyncio.Event()

    def compact(self) -> None:
        """Forget history, so that a watch from before is answered with 410."""
        self.compacted = self.version
        self.history.clear()


class FakeKube:
    """A ``KubeApi`` on a ``Cluster``."""

    def __init__(self, cluster: Cluster | None = None, guard: WriteGuard | None = None) -> None:
        self.cluster = cluster or Cluster()
        self._guard = guard

    def guarded(self, guard: WriteGuard) -> "FakeKube":
        return FakeKube(self.cluster, guard)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> KubeObject:
        await self._begin("get", resource, name)
        return copy.deepcopy(self._find(resource, namespace or "", name))

    async def list(
        self, resource: Resource, selection: Selection, *, limit: int = 500, continue_token: str = ""
    ) -> ListPage:
        await self._begin("list", resource, "")
        found = [
            copy.deepcopy(obj)
            for identity, obj in sorted(self.cluster.objects.items())
            if identity[0] == resource.plural and _selected(obj, selection)
        ]
        start = int(continue_token or 0)
        more = str(start + limit) if start + limit < len(found) else ""
        return ListPage(found[start : start + limit], str(self.cluster.version), more)

    async def watch(
        self,
        resource: Resource,
        selection: Selection,
        *,
        resource_version: str,
        timeout_seconds: int = 300,  # noqa: ARG002 - this server never ends a watch by itself
    ) -> AsyncGenerator[WatchEvent, None]:
        await self._begin("watch", resource, "")
        seen, breaks = int(resource_version), len(self.cluster.breaks)
        while True:
            if seen < self.cluster.compacted:
                raise GoneError("too old resource version", status=410)
            for version, kind, of, obj in list(self.cluster.history):
                if version > seen and of == resource:
                    if _selected(obj, selection):
                        yield WatchEvent(kind, copy.deepcopy(obj))
                    seen = version
            if len(self.cluster.breaks) > breaks:
                raise self.cluster.breaks[-1]
            await self.cluster.news.wait()

    async def apply(self, obj: KubeObject, resource: Resource, *, field_manager: str) -> KubeObject:
        return await self._apply(obj, resource, "spec", field_manager)

    async def apply_status(self, obj: KubeObject, resource: Resource, *, field_manager: str) -> KubeObject:
        return await self._apply(obj, resource, "status", field_manager)

    async def create(self, obj: KubeObject, resource: Resource) -> KubeObject:
        await self._begin("create", resource, obj["metadata"]["name"])
        if _identity(resource, obj) in self.cluster.objects:
            raise ConflictError("already exists", status=409, reason="AlreadyExists")
        return self.cluster.put(resource, _fresh(obj), "ADDED")

    async def replace(self, obj: KubeObject, resource: Resource) -> KubeObject:
        metadata = obj["metadata"]
        await self._begin("replace", resource, metadata["name"])
        current = self._find(resource, metadata.get("namespace", ""), metadata["name"])
        if metadata["resourceVersion"] != current["metadata"]["resourceVersion"]:
            raise ConflictError("the object has been modified", status=409)
        return self.cluster.put(resource, copy.deepcopy(obj), "MODIFIED")

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, preconditions: Preconditions | None = None
    ) -> None:
        await self._begin("delete", resource, name)
        current = self._find(resource, namespace or "", name)
        if preconditions and preconditions.uid not in (None, current["metadata"]["uid"]):
            raise ConflictError("uid precondition failed", status=409)
        self.cluster.put(resource, copy.deepcopy(current), "DELETED")

    async def _apply(self, obj: KubeObject, resource: Resource, part: str, manager: str) -> KubeObject:
        await self._begin("apply" if part == "spec" else "apply_status", resource, obj["metadata"]["name"])
        identity = _identity(resource, obj)
        current = self.cluster.objects.get(identity)
        if current is None and part == "status":
            raise NotFoundError("no such object", status=404)
        meant = obj["metadata"].get("uid")
        if meant is not None and (current is None or meant != current["metadata"]["uid"]):
            raise ConflictError("the UID in the precondition does not match", status=409)
        version = obj["metadata"].get("resourceVersion")
        if version is not None and (current is None or version != current["metadata"]["resourceVersion"]):
            raise ConflictError("the object has been modified", status=409)
        after = copy.deepcopy(current) if current else _fresh({"metadata": dict(obj["metadata"])})
        _merge(after, obj, self.cluster.applied.get((identity, part, manager), {}))
        self.cluster.applied[identity, part, manager] = copy.deepcopy(obj)
        if after == current:
            return copy.deepcopy(after)
        if current is not None and {**after, "status": 0} != {**current, "status": 0}:
            after["metadata"]["generation"] = current["metadata"].get("generation", 0) + 1
        return self.cluster.put(resource, after, "MODIFIED" if current else "ADDED")

    async def _begin(self, verb: str, resource: Resource, name: str) -> None:
        await asyncio.sleep(0)  # every request is a point where others run
        if verb not in ("get", "list", "watch"):
            if self._guard is not None:
                self._guard()
            self.cluster.writes.append((verb, resource.plural, name))
        self.cluster.before(verb, resource.plural, name)

    def _find(self, resource: Resource, namespace: str, name: str) -> KubeObject:
        try:
            return self.cluster.objects[resource.plural, namespace, name]
        except KeyError:
            raise NotFoundError(f'{resource.plural} "{name}" not found', status=404) from None


_UIDS = count(1)


def _fresh(obj: KubeObject) -> KubeObject:
    metadata = {**obj["metadata"], "uid": f"uid-{next(_UIDS)}", "generation": 1}
    return copy.deepcopy({**obj, "metadata": metadata})


def _identity(resource: Resource, obj: KubeObject) -> Identity:
    return resource.plural, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _selected(obj: KubeObject, selection: Selection) -> bool:
    if selection.namespace is not None and obj["metadata"].get("namespace") != selection.namespace:
        return False
    labels = obj["metadata"].get("labels") or {}
    terms = [term.partition("=") for term in selection.label_selector.split(",") if term]
    return all(labels.get(key) == value if equals else key in labels for key, equals, value in terms)


def _merge(target: dict[str, Any], desired: dict[str, Any], former: dict[str, Any]) -> None:
    for key in former.keys() - desired.keys():
        target.pop(key, None)
    for key, value in desired.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            before = former.get(key)
            _merge(target[key], value, before if isinstance(before, dict) else {})
        else:
            target[key] = copy.deepcopy(value)
