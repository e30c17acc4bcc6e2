"""NetworkPolicies of a serving: who may open a connection to its pods. What pods themselves open is not limited.

They say nothing of EFA's own traffic, which is no IP: there security groups decide. The kubelet's probes come from the
pod's node, which every network plug-in lets in. Policies add up: one of the user's own may let others in besides, such
as a metrics system.
"""

from __future__ import annotations

from typing import Any, Final

from duplex_connector.contract import MANAGED_BY, Label, Port, Role
from duplex_operator.api import DisaggregatedServing
from duplex_operator.render.names import RenderContext, metadata, router_labels, router_name, router_selector

_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""Label that the API server itself gives every namespace."""


def render_policies(serving: DisaggregatedServing, context: RenderContext) -> list[dict[str, Any]]:
    """Return the policies of engines and router: they let in what the serving needs and no more."""
    engines = {
        "matchLabels": {Label.SERVING: serving.name},
        "matchExpressions": [{"key": Label.ROLE, "operator": "In", "values": [role.value for role in Role]}],
    }
    operator = {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: context.operator_namespace}},
        "podSelector": {"matchLabels": {Label.NAME: MANAGED_BY}},
    }
    # API and metrics of an engine share a port. Engines need all of one another's: UCX picks its own.
    routers = {"from": [{"podSelector": {"matchLabels": router_selector(serving.name)}}], "ports": [_tcp(Port.API)]}
    of_engines = metadata(serving, f"{serving.name}-engines", {Label.SERVING: serving.name}, context.operator_version)
    of_router = metadata(serving, router_name(serving.name), router_labels(serving.name), context.operator_version)
    clients, operators = {"ports": [_tcp(Port.API)]}, {"from": [operator], "ports": [_tcp(Port.ADMIN)]}
    return [
        _policy(of_engines, engines, [routers, {"from": [{"podSelector": engines}]}]),
        _policy(of_router, {"matchLabels": router_selector(serving.name)}, [clients, operators]),
    ]


def _tcp(port: int) -> dict[str, Any]:
    return {"protocol": "TCP", "port": port}


def _policy(own: dict[str, Any], pods: dict[str, Any], ingress: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": own,
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress},
    }
