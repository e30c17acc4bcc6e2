"""The revision: changes with what shapes engine pods, and with nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from duplex_operator.render import RenderContext, render_engines, revision_of
from operator_tests.api.objects import changed, serving

CONTEXT = RenderContext(router_image="router:1", connector_image="connector:1", operator_version="0.1.0")
STOCK: dict[str, Any] = {"engine": {"connector": "Stock"}}

LIVE: tuple[dict[str, Any], ...] = (
    {"prefill": {"replicas": 3}, "decode": {"replicas": 5}},
    {"decode": {"scaling": {"mode": "External", "maxReplicas": 5}}},
    {"router": {"replicas": 2, "affinity": "Header", "tenancy": "None"}},
    {"suspend": True},
    {"rollout": {"progressDeadlineSeconds": 60}},
    {"podDisruptionBudget": {"enabled": True}},
    {"kvTransfer": {"bidirectional": {"ttlSeconds": 60}}},
    {"kvTransfer": {"bidirectional": {"recomputeThresholdTokens": 1024}}},
    {"kvTransfer": {"bidirectional": {"retentionBudget": {"percentOfKV": 10}}}},
    {"kvTransfer": {"bidirectional": {"enabled": False}}},
)

SHAPING: tuple[dict[str, Any], ...] = (
    {"model": {"id": "other"}},
    {"model": {"maxLength": 4096}},
    {"model": {"source": {"pvc": {"claimName": "w"}}}},
    {"engine": {"image": "vllm/vllm-openai:v0.33.1"}},
    {"engine": {"args": ["--enforce-eager"]}},
    {"engine": {"env": [{"name": "A", "value": "1"}]}},
    {"engine": {"blockSize": 32}},
    {"engine": {"connector": "Stock"}},
    {"prefill": {"tensorParallelSize": 4}},
    {"decode": {"instanceType": "p5e.48xlarge"}},
    {"decode": {"args": ["--enforce-eager"]}},
    {"decode": {"resources": {"requests": {"cpu": 4}}}},
    {"decode": {"podTemplate": {"metadata": {"annotations": {"a": "b"}}}}},
    {"kvTransfer": {"leaseSeconds": 60}},
    {"kvTransfer": {"kvRole": "PerRole"}},
    {"kvTransfer": {"backend": "UCX", "allowSlowTransport": True}},
)

STOCK_SHAPING: tuple[dict[str, Any], ...] = (
    {"kvTransfer": {"bidirectional": {"ttlSeconds": 60}}},
    {"kvTransfer": {"bidirectional": {"recomputeThresholdTokens": 1024}}},
    {"kvTransfer": {"bidirectional": {"enabled": False}}},
)


def templates(**change: Any) -> list[Any]:
    """Return the pod templates of both roles as they would stand under one fixed revision."""
    rendered = render_engines(serving(**change), CONTEXT, "00000000")
    return [child["spec"]["template"] for child in rendered if child["kind"] == "Deployment"]


def test_it_is_eight_hex_digits_and_stable() -> None:
    assert revision_of(serving().spec) == revision_of(serving("other").spec)
    assert len(revision_of(serving().spec)) == 8
    assert int(revision_of(serving().spec), 16) >= 0


@pytest.mark.parametrize("change", LIVE)
def test_live_fields_change_neither_revision_nor_pods(change: dict[str, Any]) -> None:
    assert revision_of(serving(**change).spec) == revision_of(serving().spec)
    assert templates(**change) == templates()


def test_how_long_engines_drain_is_no_reason_to_restart_them() -> None:
    """Pods of later revisions get the new grace period; see the test of kept templates in plan/test_decide.py."""
    assert revision_of(serving(decode={"drainSeconds": 60}).spec) == revision_of(serving().spec)
    assert templates(decode={"drainSeconds": 60}) != templates()


@pytest.mark.parametrize("change", SHAPING)
def test_shaping_fields_change_revision_and_pods(change: dict[str, Any]) -> None:
    assert revision_of(serving(**change).spec) != revision_of(serving().spec)
    assert templates(**change) != templates()


@pytest.mark.parametrize("change", STOCK_SHAPING)
def test_on_stock_engines_reuse_is_flags(change: dict[str, Any]) -> None:
    both = changed(STOCK, change)
    assert revision_of(serving(**both).spec) != revision_of(serving(**STOCK).spec)
    assert templates(**both) != templates(**STOCK)


def test_a_default_written_out_is_the_same_revision() -> None:
    written = serving(engine={"dtype": "auto"}, decode={"nodes": 1}, placement={"sameZone": True})
    assert revision_of(written.spec) == revision_of(serving().spec)
