"""The pods of real engines in the conformance suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.pods import EnginePods, PodPlan, manifest
from duplex_lab.errors import LabError

IMAGES = {"engine-cpu": "local/engine:dev", "connector": "local/connector:dev"}


def pod(*, guarded: bool, overlay: Path | None = None) -> dict[str, Any]:
    plan = PodPlan(("/models/tiny", "--seed", "0"), guarded=guarded)
    spec: dict[str, Any] = manifest("p", plan, images=IMAGES, overlay=overlay, pod={"runtimeClassName": "r"})["spec"]
    return spec


def environment(spec: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}


def test_an_engine_that_a_check_kills_stays_dead() -> None:
    assert pod(guarded=False)["restartPolicy"] == "Never"


def test_only_guarded_engines_get_the_connector() -> None:
    stock, guarded = pod(guarded=False), pod(guarded=True)
    assert "initContainers" not in stock
    assert environment(stock)["PYTHONPATH"] == ""
    (connector,) = guarded["initContainers"]
    assert connector["image"] == "local/connector:dev"
    mount = connector["volumeMounts"][0]
    assert mount in guarded["containers"][0]["volumeMounts"]
    assert environment(guarded)["PYTHONPATH"] == mount["mountPath"] == "/duplex"


def test_another_releases_code_stands_first() -> None:
    spec = pod(guarded=True, overlay=Path("/cache/overlay"))
    assert environment(spec)["PYTHONPATH"] == "/overlay:/duplex"
    assert {"name": "overlay", "hostPath": {"path": "/cache/overlay"}} in spec["volumes"]


def test_peers_reach_an_engine_at_its_pods_address() -> None:
    spec = pod(guarded=False)
    own = {"fieldRef": {"fieldPath": "status.podIP"}}
    found = {each["name"]: each.get("valueFrom") for each in spec["containers"][0]["env"]}
    assert found["VLLM_NIXL_SIDE_CHANNEL_HOST"] == found["VLLM_HOST_IP"] == own
    assert spec["runtimeClassName"] == "r"


def test_another_cluster_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLUSTER", "kind")
    with pytest.raises(LabError, match="CLUSTER=local"):
        EnginePods(tmp_path, overlay=False)
