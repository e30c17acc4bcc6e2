"""From a serving's children to the values that decisions are made on."""

import json
from collections.abc import Iterable, Mapping

from duplex_connector.contract import FLEET_KEY, ROLE_KIND, ROUTER, Label, Role
from duplex_kube.api import KubeObject
from duplex_operator.plan import KEPT_KIND, ChildRef, Observed, Pod, RoleObject, RouterStats, Workload
from duplex_operator.reconcile.children import Child
from duplex_operator.render import fleet_name


def observe(
    children: Iterable[Child],
    pods: tuple[Pod, ...],
    status: KubeObject,
    *,
    fleet: KubeObject | None,
    fleet_age: float,
    stats: Mapping[str, RouterStats],
    sees_nodes: bool = False,
) -> Observed:
    """Reduce the children that a serving owns. What has a name of ``Observed`` is as that has it."""
    owned = list(children)
    works = [workload_of(child.obj) for child in owned if child.kind == "Deployment"]
    return Observed(
        workloads=tuple(work for work in works if work.role in tuple(Role)),
        router=next((work for work in works if work.role == ROUTER), None),
        pods=tuple(pod for pod in pods if not pod.over),
        children=tuple(ChildRef(one.kind, one.name, one.uid, _label(one.obj, Label.REVISION)) for one in owned),
        roles={_label(one.obj, Label.ROLE): _role_object(one) for one in owned if one.kind == ROLE_KIND},
        kept={_label(one.obj, Label.REVISION): _kept(one.obj) for one in owned if one.kind == KEPT_KIND},
        fleet=fleet,
        fleet_age=fleet_age,
        stats=stats,
        status=status,
        sees_nodes=sees_nodes,
        ended=tuple(pod for pod in pods if pod.over),
    )


def workload_of(deployment: KubeObject) -> Workload:
    """Reduce a Deployment."""
    metadata, spec, status = deployment["metadata"], deployment["spec"], deployment.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    failure = conditions.get("ReplicaFailure", {})
    return Workload(
        name=metadata["name"],
        role=_label(deployment, Label.ROLE),
        revision=_label(deployment, Label.REVISION),
        created=metadata.get("creationTimestamp") or "",
        replicas=spec.get("replicas", 1),
        ready=status.get("readyReplicas") or 0,
        updated=status.get("updatedReplicas") or 0,
        settled=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        refused=failure.get("message", "") if failure.get("status") == "True" else "",
    )


def _role_object(child: Child) -> RoleObject:
    replicas = (child.obj.get("spec") or {}).get("replicas")
    return RoleObject(child.name, child.uid, replicas, child.obj["metadata"]["resourceVersion"])


def fleet_of(name: str, children: Iterable[Child]) -> KubeObject | None:
    """Return the fleet document that is written; None if there is none, or it is damaged and has to be written anew."""
    for child in children:
        if child.kind == "ConfigMap" and child.name == fleet_name(name):
            try:
                document = json.loads((child.obj.get("data") or {})[FLEET_KEY])
            except (KeyError, json.JSONDecodeError):
                return None
            return document if isinstance(document, dict) and "revisions" in document else None
    return None


def _label(obj: KubeObject, label: str) -> str:
    return str((obj["metadata"].get("labels") or {}).get(label, ""))


def _kept(obj: KubeObject) -> tuple[KubeObject, ...]:
    return tuple((obj.get("data") or {}).get("engines") or ())
