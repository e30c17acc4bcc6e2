"""What runs in an engine pod before the engine: the connector's delivery, and the look at devices and libraries."""

from __future__ import annotations

from typing import Any

from duplex_connector.contract import CONNECTOR_MOUNT, PREFLIGHT_MODULE, Env
from duplex_operator.api import Resolved, ResolvedRole, Spec
from duplex_operator.api.instances import Accelerator
from duplex_operator.api.pod_template import CONNECTOR_CONTAINER, CONNECTOR_VOLUME, PREFLIGHT_CONTAINER
from duplex_operator.render.engine_container import engine_container
from duplex_operator.render.names import RenderContext


def needs_preflight(resolved: Resolved) -> bool:
    """Tell whether there are devices to look at. An engine on CPU that cannot start says so itself, and soon."""
    return resolved.accelerator is not Accelerator.NONE


def init_containers(spec: Spec, context: RenderContext, resolved: Resolved, role: ResolvedRole) -> list[dict[str, Any]]:
    """Return the init containers in the order in which they run.

    The package comes into every engine pod, also of stock engines: the preflight and the preStop hook are in it.
    """
    look = [_preflight_container(spec, resolved, role)] if needs_preflight(resolved) else []
    return [_connector_container(context), *look]


def _connector_container(context: RenderContext) -> dict[str, Any]:
    return {
        "name": CONNECTOR_CONTAINER,
        "image": context.connector_image,
        "command": ["duplex-connector-install", CONNECTOR_MOUNT],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": CONNECTOR_VOLUME, "mountPath": CONNECTOR_MOUNT}],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _preflight_container(spec: Spec, resolved: Resolved, role: ResolvedRole) -> dict[str, Any]:
    """Return the engine's container with another program: it sees the same image, devices, weights and limits.

    The kubelet gives an init container's devices to the engine after it, so that nothing is counted twice.
    """
    engine = engine_container(spec, resolved, role)
    environment = [one for one in engine["env"] if one["name"] != Env.PYTHON_PATH]
    same = {
        key: engine[key]
        for key in ("image", "terminationMessagePolicy", "resources", "securityContext", "volumeMounts")
    }
    return {
        "name": PREFLIGHT_CONTAINER,
        **same,
        "command": ["python3", "-m", PREFLIGHT_MODULE],
        "args": _arguments(resolved, role),
        "env": [*environment, {"name": Env.PYTHON_PATH, "value": CONNECTOR_MOUNT}],
    }


def _arguments(resolved: Resolved, role: ResolvedRole) -> list[str]:
    values = {
        "--accelerator": resolved.accelerator.value,
        "--devices": role.devices,
        "--efa": role.efa,
        "--backend": resolved.backend.value,
        "--version": resolved.version,
        "--model": resolved.engine_model,
    }
    return [text for flag, value in values.items() for text in (flag, str(value))]
