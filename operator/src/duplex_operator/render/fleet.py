"""The fleet document: what the operator tells the routers of a serving, in a ConfigMap."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from duplex_connector.contract import FLEET_KEY, HANDLE_EXPIRY_MARGIN_SECONDS, Role
from duplex_operator.api import DisaggregatedServing, resolve
from duplex_operator.render.names import engine_name, fleet_name, metadata, router_labels

MAX_DRAINING: Final = 1000
"""Most draining pods that the document names; a ConfigMap holds 1 MiB."""

CANARY_INTERVAL_SECONDS: Final = 300


@dataclass(frozen=True)
class FleetRevision:
    """A revision that routers may use, with its share of new conversations in percent."""

    name: str
    weight: int = 100


def fleet_document(
    serving: DisaggregatedServing,
    revisions: Sequence[FleetRevision],
    version: tuple[int, int],
    draining: Iterable[str],
) -> dict[str, Any]:
    """Return the document; `version` is (leader term, counter), `draining` holds pod names.

    Equal inputs give equal documents, so that a caller can leave an unchanged one unwritten.
    """
    spec = serving.spec
    resolved = resolve(spec)
    reuse = spec.kv_transfer.bidirectional
    return {
        "version": list(version),
        "serving": {
            "namespace": serving.namespace,
            "name": serving.name,
            "generation": serving.metadata.generation,
        },
        "model": {
            "name": resolved.served_name,
            "blockSize": resolved.block_size,
            "connector": resolved.connector.value,
        },
        "policy": {
            "bidirectional": resolved.bidirectional,
            "ttlSeconds": reuse.ttl_seconds,
            "maxHoldSeconds": reuse.max_hold_seconds,
            "recomputeThresholdTokens": reuse.recompute_threshold_tokens,
            "retentionPercent": reuse.retention_budget.percent_of_kv,
            "tenancy": spec.router.tenancy.value,
            "streams": resolved.streams,
            "marginSeconds": HANDLE_EXPIRY_MARGIN_SECONDS,
        },
        "canary": {"enabled": True, "intervalSeconds": CANARY_INTERVAL_SECONDS},
        "revisions": [
            {
                "name": revision.name,
                "weight": revision.weight,
                "prefill": engine_name(serving.name, Role.PREFILL, revision.name),
                "decode": engine_name(serving.name, Role.DECODE, revision.name),
            }
            for revision in revisions
        ],
        "draining": sorted(set(draining))[:MAX_DRAINING],
    }


def render_fleet(
    serving: DisaggregatedServing,
    revisions: Sequence[FleetRevision],
    version: tuple[int, int],
    draining: Iterable[str],
) -> dict[str, Any]:
    """Return the ConfigMap `<serving>-fleet` with the document under `fleet.json`."""
    document = fleet_document(serving, revisions, version, draining)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(serving, fleet_name(serving.name), router_labels(serving.name)),
        "data": {FLEET_KEY: json.dumps(document, indent=1)},
    }
