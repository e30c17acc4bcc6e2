"""Builder of vLLM's --kv-transfer-config for one role.

Key names and defaults: vLLM 0.33.0, vllm/config/kv_transfer.py and the NIXL connector's extra config, which ignores
misspelt keys in silence; hence one builder, with golden tests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from duplex_connector.contract import (
    CONNECTOR_CLASS,
    CONNECTOR_MODULE,
    GUARDED_THRESHOLD_TOKENS,
    GUARDED_TTL_SECONDS,
    Backend,
    ConnectorKind,
    Role,
)

_ROLE_OF: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
_BOTH: Final = "kv_both"


@dataclass(frozen=True)
class TransferSettings:
    """What decides the transfer config of both roles.

    `buffer_device`: vLLM's word for where KV lives, `cuda` (also on Neuron) or `cpu`.
    `role_is_both`: kv_both on both roles; else producer and consumer.
    `ttl_seconds`, `threshold_tokens`: only stock engines are given them; guarded ones get them with each request.
    `neuron`: vllm-neuron also reads the threshold under its first name, remote_pull_threshold (Neuron SDK 2.32.0).
    """

    connector: ConnectorKind
    backend: Backend
    buffer_device: str
    role_is_both: bool
    lease_seconds: int
    bidirectional: bool
    ttl_seconds: int
    threshold_tokens: int
    neuron: bool = False


def kv_transfer_config(role: Role, settings: TransferSettings) -> dict[str, Any]:
    """Return the config of one role as vLLM reads it.

    A guarded engine always has the bidirectional flag and constants for TTL and threshold, so that an edit of them
    restarts nothing. A guarded engine computes what a failed load did not bring; a stock one must fail the request,
    since vLLM's own `recompute` waits for ever when a pull fails (0.24.0 to 0.33.0).
    The engine id is left to vLLM: a pinned one would let a restarted engine pass for the old one.
    """
    guarded = settings.connector is ConnectorKind.GUARDED
    config: dict[str, Any] = {
        "kv_connector": CONNECTOR_CLASS,
        "kv_role": _BOTH if settings.role_is_both else _ROLE_OF[role],
        "kv_buffer_device": settings.buffer_device,
        "kv_load_failure_policy": "recompute" if guarded else "fail",
    }
    if guarded:
        config["kv_connector_module_path"] = CONNECTOR_MODULE
    extra: dict[str, Any] = {
        # Without this vLLM takes UCX, and no environment variable changes that.
        "backends": [settings.backend.value],
        "kv_lease_duration": settings.lease_seconds,
        "bidirectional_kv_xfer": guarded or settings.bidirectional,
    }
    if guarded:
        extra["kv_recompute_threshold"] = GUARDED_THRESHOLD_TOKENS
        extra["decoder_kv_blocks_ttl"] = GUARDED_TTL_SECONDS
    elif settings.bidirectional:
        extra["kv_recompute_threshold"] = settings.threshold_tokens
        extra["decoder_kv_blocks_ttl"] = settings.ttl_seconds
        if settings.neuron:
            extra["remote_pull_threshold"] = settings.threshold_tokens
    config["kv_connector_extra_config"] = extra
    return config


def kv_transfer_argument(role: Role, settings: TransferSettings) -> str:
    """Return the config of one role as the value of --kv-transfer-config: compact JSON with stable key order."""
    return json.dumps(kv_transfer_config(role, settings), separators=(",", ":"))
