"""What a podTemplate must leave alone: whatever the router, the peers or the rollout rely on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from duplex_connector.contract import CONNECTOR_MOUNT, GROUP, ROUTER
from duplex_operator.api.base import Problem
from duplex_operator.api.engine import REFUSED_ENV

ENGINE_CONTAINER: Final = "engine"
ROUTER_CONTAINER: Final = ROUTER
CONNECTOR_CONTAINER: Final = "connector"
PREFLIGHT_CONTAINER: Final = "preflight"
CONNECTOR_VOLUME: Final = "duplex-connector"
MODEL_VOLUME: Final = "model"

_OWNED_CONTAINER_KEYS: Final = {
    "image": "set the image field of spec instead",
    "command": "the image's entry point is used; build it into the image",
    "args": "set the args field of the engine or role instead",
    "ports": "the ports are fixed; remove it",
    "lifecycle": "its preStop hook waits for what others still need; remove it, or give it to a container of your own",
}
_OWNED_POD_KEYS: Final = {
    "hostNetwork": "engines of one node would fight for the same ports; remove it",
    "restartPolicy": "a Deployment restarts always; remove it",
    "nodeName": "the scheduler places pods; use nodeSelector or affinity",
    "resourceClaims": "devices by DRA are not acted on in this release; remove it: the device plugins give them",
}
_GRACE_KEY: Final = {"terminationGracePeriodSeconds": "it follows from drainSeconds; set that instead"}
_LABEL_PREFIXES: Final = ("app.kubernetes.io/", f"{GROUP}/")
_FABRIC_DEVICES: Final = "/dev/infiniband"


def engine_template_problems(field: str, template: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with a role's podTemplate; `field` is its path below spec."""
    yield from _shape_problems(field, template)
    pod = _mapping(template.get("spec"))
    yield from _key_problems(f"{field}.spec", pod, _OWNED_POD_KEYS | _GRACE_KEY)
    yield from _container_problems(f"{field}.spec.containers", _items(pod, "containers"), ENGINE_CONTAINER)
    for container in _items(pod, "initContainers"):
        if (name := container.get("name")) in {CONNECTOR_CONTAINER, PREFLIGHT_CONTAINER}:
            yield Problem(f"{field}.spec.initContainers[{name}]", "the operator writes it; remove it")
    for volume in _items(pod, "volumes"):
        if volume.get("name") in {CONNECTOR_VOLUME, MODEL_VOLUME}:
            yield Problem(f"{field}.spec.volumes[{volume['name']}]", "the operator writes it; choose another name")
        if str(_mapping(volume.get("hostPath")).get("path", "")).rstrip("/").startswith(_FABRIC_DEVICES):
            yield Problem(
                f"{field}.spec.volumes[{volume.get('name')}]",
                f"mounting {_FABRIC_DEVICES} breaks EFA; the device plugin gives the devices; remove it",
            )


def router_template_problems(field: str, template: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with the router's podTemplate; `field` is its path below spec."""
    yield from _shape_problems(field, template)
    pod = _mapping(template.get("spec"))
    owned = _OWNED_POD_KEYS | {"serviceAccountName": "the router's own account has the rights it needs; remove it"}
    yield from _key_problems(f"{field}.spec", pod, owned)
    yield from _container_problems(f"{field}.spec.containers", _items(pod, "containers"), ROUTER_CONTAINER)


def _shape_problems(field: str, template: Mapping[str, Any]) -> Iterator[Problem]:
    for key in template:
        if key not in {"metadata", "spec"}:
            yield Problem(f"{field}.{key}", "a pod template has metadata and spec only; remove it")
    for key, value in _mapping(template.get("metadata")).items():
        if key not in {"labels", "annotations"}:
            yield Problem(f"{field}.metadata.{key}", "only labels and annotations may be added; remove it")
        elif key == "labels":
            for label in _mapping(value):
                if label.startswith(_LABEL_PREFIXES):
                    yield Problem(f"{field}.metadata.labels[{label}]", "the operator writes it; choose another key")
    yield from _value_problems(field, template)


def _value_problems(field: str, value: object) -> Iterator[Problem]:
    """Yield nulls, patch directives, and nameless items where the merge goes by name."""
    if value is None:
        yield Problem(field, "null has no meaning here; leave the key out")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if str(key).startswith("$"):
                yield Problem(f"{field}.{key}", "patch directives are not supported; remove it")
            else:
                yield from _value_problems(f"{field}.{key}", inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, inner in enumerate(value):
            yield from _value_problems(f"{field}[{index}]", inner)


def _key_problems(field: str, given: Mapping[str, Any], owned: Mapping[str, str]) -> Iterator[Problem]:
    for key, remedy in owned.items():
        if key in given:
            yield Problem(f"{field}.{key}", remedy)


def _container_problems(field: str, containers: Sequence[Mapping[str, Any]], own: str) -> Iterator[Problem]:
    for container in containers:
        name = container.get("name")
        if not name:
            yield Problem(field, f"a container without a name: name it {own} to change the operator's, or give another")
            continue
        if name != own:
            continue
        yield from _key_problems(f"{field}[{own}]", container, _OWNED_CONTAINER_KEYS)
        for variable in _items(container, "env"):
            if variable.get("name") in REFUSED_ENV:
                yield Problem(f"{field}[{own}].env[{variable['name']}]", "the operator writes it; remove it")
        for mount in _items(container, "volumeMounts"):
            if str(mount.get("mountPath", "")).rstrip("/") == CONNECTOR_MOUNT:
                yield Problem(f"{field}[{own}].volumeMounts[{CONNECTOR_MOUNT}]", "the operator writes it; remove it")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(parent: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the mappings in a list; what else stands there the API server refuses when the pod is created."""
    value = parent.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
