"""The revision: a hash over the fields of a spec that shape the engine pods of both roles."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from duplex_connector.contract import ConnectorKind
from duplex_operator.api import Role, Spec, resolve

REVISION_LENGTH: Final = 8

_NOT_OF_THE_POD: Final = {"replicas", "scaling", "drainSeconds"}


def revision_of(spec: Spec) -> str:
    """Return 8 hex digits that change exactly when the engine pods must be replaced.

    Part of it: model, engine, roles except replicas, scaling and drainSeconds, placement, transport, lease, kvRole, and
    on stock engines also what becomes their flags (reuse on or off, TTL, threshold). Not part of it: router, rollout,
    suspend, and on guarded engines TTL, threshold and budget, which travel with each request.
    drainSeconds does shape the pod (its grace period), and is left out all the same: a change of it would throw away
    the KV that it is to save. What runs keeps the grace period that its revision began with.
    Fields left at their defaults do not count, so that a field that a later release adds changes no revision.
    """
    canonical = json.dumps(_shaping(spec), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:REVISION_LENGTH]


def _shaping(spec: Spec) -> dict[str, Any]:
    resolved = resolve(spec)
    transfer = spec.kv_transfer
    shaping: dict[str, Any] = {
        "model": _given(spec.model),
        "engine": _given(spec.engine),
        "prefill": _role(spec.prefill),
        "decode": _role(spec.decode),
        "placement": _given(spec.placement),
        "backend": resolved.backend.value,
        "kvRole": transfer.kv_role.value,
        "leaseSeconds": transfer.lease_seconds,
    }
    if resolved.connector is ConnectorKind.STOCK:
        reuse = transfer.bidirectional
        shaping["stockReuse"] = (
            [reuse.ttl_seconds, reuse.recompute_threshold_tokens] if resolved.bidirectional else None
        )
    return shaping


def _role(role: Role) -> dict[str, Any]:
    return {key: value for key, value in _given(role).items() if key not in _NOT_OF_THE_POD}


def _given(model: Any) -> dict[str, Any]:  # noqa: ANN401 - any API model
    given: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return given
