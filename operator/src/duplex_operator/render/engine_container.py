"""The engine container of a role: vLLM's command line, environment, devices and probes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from duplex_connector.config import TransferSettings, kv_transfer_argument
from duplex_connector.contract import CONNECTOR_MOUNT, LEAVING_MODULE, ConnectorKind, Env, Port, Role
from duplex_connector.leaving import NOTICE_SECONDS
from duplex_operator.api import EnvVar, Resolved, ResolvedRole, Spec
from duplex_operator.api.kv_transfer import KvRole
from duplex_operator.api.pod_template import CONNECTOR_VOLUME, ENGINE_CONTAINER, MODEL_VOLUME
from duplex_operator.api.resolve import MODEL_MOUNT
from duplex_operator.render.names import CONTAINER_API_PORT

EFA_RESOURCE: Final = "vpc.amazonaws.com/efa"

SHUTDOWN_SECONDS: Final = 10
"""vLLM's own drain after SIGTERM. The preStop hook has waited for what there was; since then nothing new came."""

EXIT_SECONDS: Final = 15
"""Between the end of vLLM's drain and the kill."""

STARTUP_SECONDS: Final = 7200
"""Longest start: large weights from a cold store, and compilation on Neuron."""

_STARTUP_PERIOD_SECONDS: Final = 2

_FABRIC_ENV: Final = {
    # Only EFA: without it libfabric falls back to TCP and says nothing.
    Env.FABRIC_PROVIDER: "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    # Shared-memory transfer has corrupted accelerator buffers of pods on one node (dynamo#9712, Neuron SDK notes).
    "FI_EFA_ENABLE_SHM_TRANSFER": "0",
    # The pods request no huge pages.
    "FI_EFA_USE_HUGE_PAGE": "0",
    "FI_LOG_LEVEL": "warn",
}

_TCP_ENV: Final = {
    # A pull over a cut network hangs for ever by default; so it fails after this long.
    "UCX_TCP_USER_TIMEOUT": "5s",
}

_NEURON_ENV: Final = {
    "VLLM_NEURON_COMPILATION_TIMEOUT": "2400",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1200",
}

_NEURON_ROLE_ENV: Final = {
    Role.PREFILL: {"VLLM_NEURON_SKIP_DECODE_WARMUP": "1"},
    Role.DECODE: {"VLLM_NEURON_SKIP_PREFILL_WARMUP": "1"},
}


def engine_container(spec: Spec, resolved: Resolved, role: ResolvedRole) -> dict[str, Any]:
    """Return the container; the image's entry point is `vllm serve` or a program that takes the same arguments."""
    return {
        "name": ENGINE_CONTAINER,
        "image": spec.engine.image,
        # The last lines of the log are the pod's own last words: status shows them when the engine cannot start.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "args": engine_arguments(spec, resolved, role),
        "env": engine_environment(spec, resolved, role),
        "ports": [CONTAINER_API_PORT, *_side_channels(role.data_parallel_size)],
        "resources": _resources(role),
        "volumeMounts": _mounts(spec),
        "securityContext": _security(resolved),
        "startupProbe": _probe(_STARTUP_PERIOD_SECONDS, STARTUP_SECONDS // _STARTUP_PERIOD_SECONDS),
        "readinessProbe": _probe(5, 3),
        # No liveness probe: /health turns bad only when vLLM is ending by itself, and a slow answer under load is no
        # reason to throw a cache away.
        "lifecycle": {"preStop": {"exec": {"command": _leaving(role)}}},
    }


def engine_arguments(spec: Spec, resolved: Resolved, role: ResolvedRole) -> list[str]:
    """Return vLLM's arguments: the operator's, then the engine's, then the role's."""
    model, engine = spec.model, spec.engine
    optional = {
        "--revision": model.revision,
        "--max-model-len": model.max_length,
        "--dtype": None if engine.dtype == "auto" else engine.dtype,
        "--kv-cache-dtype": None if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype,
        "--load-format": "runai_streamer" if model.source and model.source.s3 else None,
    }
    return [
        resolved.engine_model,
        "--host",
        "0.0.0.0",  # noqa: S104 - the pod's own network namespace
        "--port",
        str(Port.API),
        "--served-model-name",
        resolved.served_name,
        "--tensor-parallel-size",
        str(role.tensor_parallel_size),
        *(["--data-parallel-size", str(role.data_parallel_size)] if role.data_parallel_size > 1 else []),
        "--block-size",
        str(resolved.block_size),
        *(text for flag, value in optional.items() if value is not None for text in (flag, str(value))),
        *(["--disable-hybrid-kv-cache-manager"] if engine.whole_windows else []),
        "--kv-transfer-config",
        kv_transfer_argument(role.name, transfer_settings(spec, resolved)),
        "--enable-prompt-tokens-details",
        "--shutdown-timeout",
        str(SHUTDOWN_SECONDS),
        *(engine.args or ()),
        *(role.spec.args or ()),
    ]


def grace_seconds(role: ResolvedRole) -> int:
    """Return the longest time that a pod of a role takes to end: notice, the wait for holds, vLLM's drain, and exit."""
    return math.ceil(NOTICE_SECONDS) + role.spec.drain_seconds + SHUTDOWN_SECONDS + EXIT_SECONDS


def _leaving(role: ResolvedRole) -> list[str]:
    """Return the preStop hook: where it cannot run, routers still get time to hear that the pod has left."""
    wait = f"PYTHONPATH={CONNECTOR_MOUNT} python3 -m {LEAVING_MODULE} {role.spec.drain_seconds}"
    return ["sh", "-c", f"{wait} || sleep {math.ceil(NOTICE_SECONDS)}"]


def _side_channels(ranks: int) -> list[dict[str, Any]]:
    """Return one port for each data-parallel rank: vLLM adds its number to the first (nixl/base_scheduler.py)."""
    names = ["side-channel", *(f"side-channel-{rank}" for rank in range(1, ranks))]
    return [
        {"name": name, "containerPort": Port.SIDE_CHANNEL + rank, "protocol": "TCP"} for rank, name in enumerate(names)
    ]


def transfer_settings(spec: Spec, resolved: Resolved) -> TransferSettings:
    """Return what decides --kv-transfer-config, equal for both roles."""
    transfer = spec.kv_transfer
    return TransferSettings(
        connector=resolved.connector,
        backend=resolved.backend,
        buffer_device=resolved.buffer_device,
        role_is_both=transfer.kv_role is KvRole.BOTH,
        lease_seconds=transfer.lease_seconds,
        bidirectional=resolved.bidirectional,
        ttl_seconds=transfer.bidirectional.ttl_seconds,
        threshold_tokens=transfer.bidirectional.recompute_threshold_tokens,
        neuron=resolved.neuron,
    )


def engine_environment(spec: Spec, resolved: Resolved, role: ResolvedRole) -> list[dict[str, Any]]:
    """Return the environment: the operator's, then the engine's, then the role's; a later one of a name wins."""
    pod_ip = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    variables: dict[str, dict[str, Any]] = {
        # The side channel binds this address and gives it to peers, so it must be the pod's own.
        Env.SIDE_CHANNEL_HOST: pod_ip,
        Env.SIDE_CHANNEL_PORT: {"value": str(Port.SIDE_CHANNEL)},
        Env.HOST_IP: pod_ip,
        "VLLM_ENGINE_READY_TIMEOUT_S": {"value": str(STARTUP_SECONDS)},
    }
    constants = dict(_FABRIC_ENV if resolved.fabric else _TCP_ENV)
    if resolved.connector is ConnectorKind.GUARDED:
        constants[Env.PYTHON_PATH] = CONNECTOR_MOUNT
    if resolved.neuron:
        constants |= _NEURON_ENV | _NEURON_ROLE_ENV[role.name]
        if resolved.bidirectional:
            constants[Env.NEURON_BIDIRECTIONAL] = "1"
    variables |= {name: {"value": value} for name, value in constants.items()}
    hub = spec.model.source.hub if spec.model.source else None
    if hub and hub.token_secret_ref:
        secret = hub.token_secret_ref
        variables["HF_TOKEN"] = {"valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}
    variables |= _given(spec.engine.env or ()) | _given(role.spec.env or ())
    return [{"name": name} | source for name, source in variables.items()]


def _given(env: Iterable[EnvVar]) -> dict[str, dict[str, Any]]:
    return {
        variable.name: variable.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"name"})
        for variable in env
    }


def _resources(role: ResolvedRole) -> dict[str, Any]:
    """Devices, and half of the node's processors and memory that go with them, under what the role's spec says."""
    instance = role.instance
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    if instance.resource:
        share = role.devices / instance.devices
        requests["cpu"] = max(1, math.floor(instance.vcpu * share / 2))
        requests["memory"] = _gib(max(1, math.floor(instance.memory_gib * share / 2)))
        limits[instance.resource] = role.devices
    if role.efa:
        limits[EFA_RESOURCE] = role.efa
    given = role.spec.resources
    requests |= limits | ((given.requests or {}) if given else {})
    limits |= (given.limits or {}) if given else {}
    return {kind: amounts for kind, amounts in (("requests", requests), ("limits", limits)) if amounts}


def _gib(amount: int) -> str:
    """Return a quantity as the API server itself writes it, so that what is stored equals what is rendered."""
    return f"{amount}Gi" if amount % 1024 else f"{amount // 1024}Ti"


def _mounts(spec: Spec) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - a mount
        {"name": CONNECTOR_VOLUME, "mountPath": CONNECTOR_MOUNT, "readOnly": True},
    ]
    source = spec.model.source
    if source and (source.pvc or source.host_path):
        mounts.append({"name": MODEL_VOLUME, "mountPath": MODEL_MOUNT, "readOnly": True})
    return mounts


def _security(resolved: Resolved) -> dict[str, Any]:
    """Never privileged: a privileged container sees every EFA device of the node, also those of other pods."""
    context: dict[str, Any] = {"privileged": False, "allowPrivilegeEscalation": False}
    if resolved.fabric:
        # EFA pins memory beyond the usual limit; IPC_LOCK lifts it, but only for user 0.
        context |= {"runAsUser": 0, "capabilities": {"add": ["IPC_LOCK"]}}
    return context


def _probe(period_seconds: int, failure_threshold: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": "api"},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failure_threshold,
    }
