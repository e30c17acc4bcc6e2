"""Writes what was decided: children by server-side apply, pruning, status, events; nothing that changes nothing."""

import logging
from collections import defaultdict
from collections.abc import Mapping

from duplex_connector.contract import GROUP, KIND, MANAGED_BY, ROLE_KIND, VERSION
from duplex_kube.api import EVENTS, PODS, KubeApi, KubeObject, Preconditions
from duplex_kube.errors import ConflictError, InvalidError, KubeError, NotFoundError
from duplex_operator.plan import ChildRef, EventDraft, Mark, Restart, Scale
from duplex_operator.reconcile.children import Child, ChildName, controller_of
from duplex_operator.reconcile.kinds import BY_KIND, SERVINGS
from duplex_operator.reconcile.servings import Key, key_of
from duplex_operator.runtime.apply_cache import ApplyCache, stamped
from duplex_operator.runtime.clock import Clock
from duplex_operator.runtime.metrics import Metrics

CHILD_MANAGER = MANAGED_BY
"""Field manager of all children."""

MARK_MANAGER = f"{MANAGED_BY}-drain"
"""Field manager of the annotations on engine pods."""

SIZE_MANAGER = f"{MANAGED_BY}-size"
"""Field manager of the number in ServingRoles: apart, so that not to write it is not to take it away."""

STATUS_MANAGER = f"{MANAGED_BY}-status"
"""Field manager of the status."""

log = logging.getLogger(__name__)


class NotOursError(Exception):
    """An object of a child's name exists that the serving does not own."""


class Writer:
    """Writes to the API server on behalf of servings."""

    def __init__(self, api: KubeApi, clock: Clock, metrics: Metrics, reporter: str) -> None:
        self._api = api
        self._clock = clock
        self._metrics = metrics
        self._reporter = reporter
        self._caches: dict[Key, ApplyCache[ChildName]] = defaultdict(ApplyCache)

    async def apply(self, serving: KubeObject, obj: KubeObject, observed: Mapping[ChildName, Child]) -> None:
        """Bring one child to what ``obj`` says, unless it is so already.

        Raises ``NotOursError`` rather than take over an object that the serving does not own.
        """
        cache, name = self._caches[key_of(serving)], (obj["kind"], obj["metadata"]["name"])
        child = observed.get(name)
        ours = child is not None and child.owner == serving["metadata"]["uid"]
        if child is not None and ours and cache.is_current(name, obj, child.obj, child.fingerprint):
            return
        resource = BY_KIND[obj["kind"]]
        if not ours:
            await self._check_owner(serving, obj)
        answer = await self._api.apply(stamped(obj), resource, field_manager=CHILD_MANAGER)
        self._metrics.writes.labels("apply").inc()
        cache.record(name, obj, answer)

    async def delete(self, serving: KubeObject, child: ChildRef) -> None:
        """Delete exactly the object that was seen. One that is gone or another by now is left to the next look."""
        key = key_of(serving)
        self._caches[key].forget((child.kind, child.name))
        try:
            await self._api.delete(BY_KIND[child.kind], key[0], child.name, preconditions=Preconditions(uid=child.uid))
        except (NotFoundError, ConflictError) as error:
            log.info("%s %s/%s was not deleted: %s", child.kind, key[0], child.name, error)
        else:
            self._metrics.writes.labels("delete").inc()

    async def mark(self, serving: KubeObject, mark: Mark) -> None:
        """Write an engine pod's annotations of ours, and no pod that is gone."""
        namespace = serving["metadata"]["namespace"]
        # The uid makes it this pod: a server-side apply of a name that is gone would create it.
        metadata = {"name": mark.pod, "namespace": namespace, "uid": mark.uid, "annotations": mark.annotations()}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        try:
            await self._api.apply(body, PODS, field_manager=MARK_MANAGER)
        except (NotFoundError, ConflictError, InvalidError) as error:
            log.info("pod %s/%s was not marked: %s", namespace, mark.pod, error)
        else:
            self._metrics.writes.labels("mark").inc()

    async def scale(self, serving: KubeObject, scale: Scale, observed: Mapping[ChildName, Child]) -> None:
        """Write a ServingRole's number, if it is ours to write, and its status. One that is another by now is left."""
        resource, namespace = BY_KIND[ROLE_KIND], serving["metadata"]["namespace"]
        metadata = {"name": scale.name, "namespace": namespace, "uid": scale.uid}
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        child = observed.get((ROLE_KIND, scale.name))
        try:
            if scale.replicas is not None:
                seen = metadata | ({"resourceVersion": scale.version} if scale.version else {})
                body = {**head, "metadata": seen, "spec": {"replicas": scale.replicas}}
                await self._api.apply(body, resource, field_manager=SIZE_MANAGER)
                self._metrics.writes.labels("scale").inc()
            if child is None or child.obj.get("status") != scale.status:
                body = {**head, "metadata": metadata, "status": scale.status}
                await self._api.apply_status(body, resource, field_manager=STATUS_MANAGER)
                self._metrics.writes.labels("status").inc()
        except (NotFoundError, ConflictError, InvalidError) as error:
            log.info("%s %s/%s was not written: %s", ROLE_KIND, namespace, scale.name, error)

    async def restart(self, serving: KubeObject, restart: Restart) -> None:
        """Delete exactly the engine pod that was seen, with its grace; its Deployment makes another."""
        namespace = serving["metadata"]["namespace"]
        log.warning("%s/%s: %s", namespace, serving["metadata"]["name"], restart.why)
        try:
            await self._api.delete(PODS, namespace, restart.pod, preconditions=Preconditions(uid=restart.uid))
        except (NotFoundError, ConflictError) as error:
            log.info("pod %s/%s was not deleted: %s", namespace, restart.pod, error)
        else:
            self._metrics.writes.labels("delete").inc()

    async def write_status(self, serving: KubeObject, status: KubeObject) -> KubeObject:
        """Write the status and return the serving as it is then; nothing is sent for an equal status."""
        if serving.get("status") == status:
            return serving
        metadata = serving["metadata"]
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            # The uid makes it this serving and not a new one of the same name.
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "status": status,
        }
        answer = await self._api.apply_status(body, SERVINGS, field_manager=STATUS_MANAGER)
        self._metrics.writes.labels("status").inc()
        return answer

    async def post(self, serving: KubeObject, event: EventDraft) -> None:
        """Post an event about the serving. Events are news, not state: a failure is logged and no more."""
        metadata = serving["metadata"]
        now = self._clock.wall()
        time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        reference = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{event.reason.lower()}.{int(now.timestamp() * 1e6):x}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": reference,
            "type": "Warning" if event.warning else "Normal",
            "reason": event.reason,
            "message": event.message[:1000],
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
            "source": {"component": MANAGED_BY},
            "reportingComponent": MANAGED_BY,
            "reportingInstance": self._reporter,
        }
        try:
            await self._api.create(body, EVENTS)
        except KubeError as error:
            log.warning("event %s of %s/%s: %s", event.reason, metadata["namespace"], metadata["name"], error)
        else:
            self._metrics.writes.labels("event").inc()

    def forget(self, key: Key) -> None:
        """Forget a serving that is gone."""
        self._caches.pop(key, None)

    async def _check_owner(self, serving: KubeObject, obj: KubeObject) -> None:
        metadata = obj["metadata"]
        try:
            present = await self._api.get(BY_KIND[obj["kind"]], metadata["namespace"], metadata["name"])
        except NotFoundError:
            return
        if controller_of(present) != serving["metadata"]["uid"]:
            raise NotOursError(
                f"{obj['kind']} {metadata['name']} exists and does not belong to this serving: "
                "delete it, or give the serving another name"
            )
