"""The engines of a serving: per role one Deployment and headless Service of a revision, a budget and a ServingRole."""

from __future__ import annotations

from typing import Any, Final

from duplex_connector.contract import ROLE_KIND, Label, Port, Role
from duplex_operator.api import API_VERSION, DisaggregatedServing, Resolved, ResolvedRole, Spec, resolve
from duplex_operator.api.instances import Accelerator
from duplex_operator.api.pod_template import CONNECTOR_VOLUME, MODEL_VOLUME
from duplex_operator.render.engine_container import engine_container, grace_seconds
from duplex_operator.render.init_containers import init_containers
from duplex_operator.render.merge import merge
from duplex_operator.render.names import (
    API_PORT,
    RenderContext,
    engine_labels,
    engine_name,
    engine_selector,
    metadata,
    role_name,
)

_INSTANCE_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
_ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_HOST_LABEL: Final = "kubernetes.io/hostname"
_RESERVATION_LABEL: Final = "karpenter.k8s.aws/capacity-reservation-id"
_PLACEMENT_GROUP_LABEL: Final = "karpenter.k8s.aws/placement-group-id"

_TAINTS: Final = {
    Accelerator.NVIDIA: ("nvidia.com/gpu",),
    Accelerator.NEURON: ("aws.amazon.com/neuron",),
    Accelerator.NONE: (),
}
_FABRIC_TAINTS: Final = ("vpc.amazonaws.com/efa", "aws.amazon.com/efa")

_SHARED_MEMORY_PER_DEVICE_GIB: Final = 16


def render_engines(serving: DisaggregatedServing, context: RenderContext, revision: str) -> list[dict[str, Any]]:
    """Return the Services and Deployments of both roles in the revision that the spec describes now."""
    resolved = resolve(serving.spec)
    return [
        *(_service(serving, context, role, revision) for role in resolved.roles),
        *(_deployment(serving, context, resolved, role, revision) for role in resolved.roles),
    ]


def engine_pod(spec: Spec, context: RenderContext, resolved: Resolved, role: ResolvedRole) -> dict[str, Any]:
    """Return the pod spec of a role, before the role's podTemplate."""
    pod: dict[str, Any] = {
        "initContainers": init_containers(spec, context, resolved, role),
        "containers": [engine_container(spec, resolved, role)],
        "volumes": _volumes(spec, role),
        "enableServiceLinks": False,
        # Engines know nothing of Kubernetes.
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace_seconds(role),
    }
    if tolerations := _tolerations(resolved):
        pod["tolerations"] = tolerations
    if selector := _node_selector(spec, role):
        pod["nodeSelector"] = selector
    source = spec.model.source
    if source and source.s3 and source.s3.service_account_name:
        pod["serviceAccountName"] = source.s3.service_account_name
    return pod


def render_disruption_budgets(serving: DisaggregatedServing, operator_version: str) -> list[dict[str, Any]]:
    """Return a budget per role, across revisions: evictions take no engine before the operator has emptied it.

    How many may go all the same is the plan's to say. Engines that are not ready hold no node up.
    """
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": _of_role(serving, role, operator_version),
            "spec": {
                "maxUnavailable": 0,
                "selector": {"matchLabels": _role_labels(serving, role)},
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        }
        for role in Role
    ]


def render_roles(serving: DisaggregatedServing, operator_version: str) -> list[dict[str, Any]]:
    """Return the ServingRoles, without their numbers: those have another owner, and are not always ours."""
    return [
        {"apiVersion": API_VERSION, "kind": ROLE_KIND, "metadata": _of_role(serving, role, operator_version)}
        for role in Role
    ]


def _of_role(serving: DisaggregatedServing, role: Role, operator_version: str) -> dict[str, Any]:
    return metadata(serving, role_name(serving.name, role), _role_labels(serving, role), operator_version)


def _role_labels(serving: DisaggregatedServing, role: Role) -> dict[str, str]:
    return {Label.SERVING: serving.name, Label.ROLE: role.value}


def _service(
    serving: DisaggregatedServing, context: RenderContext, role: ResolvedRole, revision: str
) -> dict[str, Any]:
    """Headless: routers read its EndpointSlices and speak to the pods themselves."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(
            serving,
            engine_name(serving.name, role.name, revision),
            engine_labels(serving.name, role.name, revision),
            context.operator_version,
        ),
        "spec": {
            "clusterIP": "None",
            "selector": engine_selector(serving.name, role.name, revision),
            "ports": [API_PORT | {"port": Port.API, "targetPort": "api"}],
        },
    }


def _deployment(
    serving: DisaggregatedServing, context: RenderContext, resolved: Resolved, role: ResolvedRole, revision: str
) -> dict[str, Any]:
    spec = serving.spec
    labels = engine_labels(serving.name, role.name, revision)
    pod = engine_pod(spec, context, resolved, role)
    pod["affinity"] = _affinity(serving, resolved)
    described: dict[str, Any] = {"labels": labels}
    if resolved.accelerator is not Accelerator.NONE:
        # Consolidating an accelerator node would throw KV away that conversations still need.
        described["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    template = {"metadata": described, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(serving, engine_name(serving.name, role.name, revision), labels, context.operator_version),
        "spec": {
            "replicas": 0 if spec.suspend else role.spec.replicas,
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": spec.rollout.progress_deadline_seconds,
            # A change of the pods is another revision, with Deployments of its own; within one, accelerators of a
            # pod are free only once it is gone.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "selector": {"matchLabels": engine_selector(serving.name, role.name, revision)},
            "template": merge(template, role.spec.pod_template or {}),
        },
    }


def _volumes(spec: Spec, role: ResolvedRole) -> list[dict[str, Any]]:
    size = f"{max(1, role.devices * _SHARED_MEMORY_PER_DEVICE_GIB)}Gi"
    volumes: list[dict[str, Any]] = [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": size}},
        {"name": CONNECTOR_VOLUME, "emptyDir": {"sizeLimit": "16Mi"}},
    ]
    source = spec.model.source
    if source and source.pvc:
        claim = {"claimName": source.pvc.claim_name, "readOnly": True}
        volumes.append({"name": MODEL_VOLUME, "persistentVolumeClaim": claim})
    if source and source.host_path:
        volumes.append({"name": MODEL_VOLUME, "hostPath": {"path": source.host_path.path, "type": "Directory"}})
    return volumes


def _tolerations(resolved: Resolved) -> list[dict[str, Any]]:
    taints = _TAINTS[resolved.accelerator] + (_FABRIC_TAINTS if resolved.fabric else ())
    return [{"key": taint, "operator": "Exists", "effect": "NoSchedule"} for taint in taints]


def _node_selector(spec: Spec, role: ResolvedRole) -> dict[str, str]:
    """Every provisioner labels the type; the others only Karpenter does, elsewhere whoever wants them."""
    wanted = {
        _INSTANCE_TYPE_LABEL: role.spec.instance_type if role.instance.devices else None,
        _RESERVATION_LABEL: spec.placement.capacity_reservation,
        _PLACEMENT_GROUP_LABEL: spec.placement.placement_group,
    }
    return {label: value for label, value in wanted.items() if value is not None}


def _affinity(serving: DisaggregatedServing, resolved: Resolved) -> dict[str, Any]:
    """All engines in one zone: required over EFA, which cannot leave it; engines on different hosts where possible."""
    engines = {
        "matchLabels": {Label.SERVING: serving.name},
        "matchExpressions": [{"key": Label.ROLE, "operator": "In", "values": [role.value for role in Role]}],
    }
    same_zone = {"labelSelector": engines, "topologyKey": _ZONE_LABEL}
    other_host = {"labelSelector": engines, "topologyKey": _HOST_LABEL}
    affinity: dict[str, Any] = {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": other_host}]
        }
    }
    together: dict[str, Any] = {}
    required = [same_zone] if resolved.fabric else []
    if key := serving.spec.placement.topology_key:
        required.append({"labelSelector": engines, "topologyKey": key})
    if required:
        together["requiredDuringSchedulingIgnoredDuringExecution"] = required
    if serving.spec.placement.same_zone and not resolved.fabric:
        # Nodes without a zone label would refuse a required term.
        preferred = [{"weight": 100, "podAffinityTerm": same_zone}]
        together["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
    return affinity | ({"podAffinity": together} if together else {})
