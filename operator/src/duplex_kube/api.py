"""The interface to Kubernetes that everything else is written against: resources, and verbs over plain dicts."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

KubeObject = dict[str, Any]
"""One Kubernetes object as its JSON says it."""

WriteGuard = Callable[[], None]
"""Called right before every request that changes something; raises to forbid it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as the API server spells it. ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Give the URL path of the collection, of one object, or of one of its subresources."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/" + "/".join(parts)


CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("", "v1", "events", "Event")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")


@dataclass(frozen=True, slots=True)
class ListPage:
    """One chunk of a list. ``continue_token`` is empty on the last one."""

    items: list[KubeObject]
    resource_version: str
    continue_token: str = ""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK. An ERROR is raised as its ``KubeError`` instead."""

    type: str
    object: KubeObject


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource a list or a watch is about. No namespace means all of them."""

    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""


@dataclass(frozen=True, slots=True)
class Preconditions:
    """A delete happens only to the object with this uid and resourceVersion, where given."""

    uid: str | None = None
    resource_version: str | None = None


class KubeApi(Protocol):
    """What this project asks of Kubernetes. All methods raise ``KubeError`` and nothing else of their own."""

    def guarded(self, guard: WriteGuard) -> Self:
        """Give the same client, whose writes, retries included, each pass ``guard`` first."""
        ...

    async def get(self, resource: Resource, namespace: str | None, name: str) -> KubeObject:
        """Read one object."""
        ...

    async def list(
        self, resource: Resource, selection: Selection, *, limit: int = 500, continue_token: str = ""
    ) -> ListPage:
        """Read one chunk of at most ``limit`` objects. Items carry no apiVersion and kind, as the API server has it."""
        ...

    def watch(
        self, resource: Resource, selection: Selection, *, resource_version: str, timeout_seconds: int = 300
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield changes after ``resource_version``, with bookmarks, until the server ends the stream."""
        ...

    async def apply(self, obj: KubeObject, resource: Resource, *, field_manager: str) -> KubeObject:
        """Server-side apply, forced: creates or updates; fields applied before and absent now are removed."""
        ...

    async def apply_status(self, obj: KubeObject, resource: Resource, *, field_manager: str) -> KubeObject:
        """Server-side apply of the status subresource. ``obj`` holds identity and ``status`` only."""
        ...

    async def create(self, obj: KubeObject, resource: Resource) -> KubeObject:
        """Create; ``ConflictError`` if it exists. Not retried: a lost answer may hide a success."""
        ...

    async def replace(self, obj: KubeObject, resource: Resource) -> KubeObject:
        """PUT with the resourceVersion in ``obj``: ``ConflictError`` if anyone wrote in between."""
        ...

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, preconditions: Preconditions | None = None
    ) -> None:
        """Delete in the background (dependents go by owner references). ``NotFoundError`` if already gone."""
        ...
