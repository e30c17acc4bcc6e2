"""Names, labels and owner of a serving's children, and what the renderer knows beside the serving itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from duplex_connector.contract import MANAGED_BY, PART_OF, ROLE_KIND, ROLE_PLURAL, ROUTER, Label, Port, Role
from duplex_operator.api import API_VERSION, DisaggregatedServing

ENGINE_APP: Final = "duplex-engine"
ROUTER_APP: Final = "duplex-router"


@dataclass(frozen=True)
class ChildKind:
    """A kind of object that rendering a serving can give; the operator watches, writes and prunes exactly these."""

    api_version: str
    kind: str
    plural: str


CHILD_KINDS: Final = (
    ChildKind("v1", "ServiceAccount", "serviceaccounts"),
    ChildKind("rbac.authorization.k8s.io/v1", "Role", "roles"),
    ChildKind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    ChildKind("v1", "ConfigMap", "configmaps"),
    ChildKind("v1", "Service", "services"),
    ChildKind("apps/v1", "Deployment", "deployments"),
    ChildKind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ChildKind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    ChildKind(API_VERSION, ROLE_KIND, ROLE_PLURAL),
)


@dataclass(frozen=True)
class RenderContext:
    """What the operator's own settings add: images that it was installed with, its version and namespace, DNS."""

    router_image: str
    connector_image: str
    operator_version: str
    cluster_domain: str = "cluster.local"
    operator_namespace: str = "duplex-system"


def engine_name(serving: str, role: Role, revision: str) -> str:
    """Name of a role's Deployment and headless Service in one revision."""
    return f"{serving}-{role.value}-{revision}"


def role_name(serving: str, role: Role) -> str:
    """Name of a role's ServingRole and disruption budget: the same through all revisions."""
    return f"{serving}-{role.value}"


def router_name(serving: str) -> str:
    """Name of the router's Deployment, Service, ServiceAccount, Role and RoleBinding."""
    return f"{serving}-{ROUTER}"


def fleet_name(serving: str) -> str:
    """Name of the ConfigMap with the fleet document."""
    return f"{serving}-fleet"


def router_url(serving: DisaggregatedServing, context: RenderContext) -> str:
    """Address of the OpenAI-compatible API inside the cluster."""
    host = f"{router_name(serving.name)}.{serving.namespace}.svc.{context.cluster_domain}"
    scheme = "http" if serving.spec.router.tls is None else "https"
    return f"{scheme}://{host}:{serving.spec.router.service.port}/v1"


def engine_selector(serving: str, role: Role, revision: str) -> dict[str, str]:
    """Labels that select the engine pods of one role and revision; they never change."""
    return {
        Label.NAME: ENGINE_APP,
        Label.INSTANCE: serving,
        Label.COMPONENT: role.value,
        Label.REVISION: revision,
    }


def engine_labels(serving: str, role: Role, revision: str) -> dict[str, str]:
    """All labels of an engine pod. The operator's version is not among them: its upgrade restarts no engine."""
    return engine_selector(serving, role, revision) | {
        Label.PART_OF: PART_OF,
        Label.MANAGED_BY: MANAGED_BY,
        Label.SERVING: serving,
        Label.ROLE: role.value,
    }


def router_selector(serving: str) -> dict[str, str]:
    """Labels that select the router pods; they never change."""
    return {Label.NAME: ROUTER_APP, Label.INSTANCE: serving, Label.COMPONENT: ROUTER}


def router_labels(serving: str) -> dict[str, str]:
    """All labels of a router pod."""
    return router_selector(serving) | {
        Label.PART_OF: PART_OF,
        Label.MANAGED_BY: MANAGED_BY,
        Label.SERVING: serving,
        Label.ROLE: ROUTER,
    }


def metadata(
    serving: DisaggregatedServing, name: str, labels: dict[str, str], operator_version: str | None = None
) -> dict[str, Any]:
    """Metadata of a child: in the serving's namespace, owned by it, so that the garbage collector ends it."""
    version = {Label.APP_VERSION: operator_version} if operator_version else {}
    return {
        "name": name,
        "namespace": serving.namespace,
        "labels": labels | version,
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": serving.kind,
                "name": serving.name,
                "uid": serving.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


API_PORT: Final = {"name": "api", "protocol": "TCP"}
CONTAINER_API_PORT: Final = API_PORT | {"containerPort": Port.API}
