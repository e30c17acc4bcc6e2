"""The examples for autoscalers: they fit their kinds, aim at roles that a serving has, and stay within its bounds."""

from __future__ import annotations

from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from duplex_operator.api import limits_of
from operator_tests.render.test_examples import EXAMPLES, children, parse

FOLDER = EXAMPLES[0].parent / "autoscaling"
SERVING = EXAMPLES[0].parent / "qwen3-32b-autoscaled.yaml"
TRIGGER: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["type", "metricType", "metadata"],
    "properties": {
        "type": {"const": "prometheus"},
        "metricType": {"enum": ["AverageValue", "Value"]},
        "metadata": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "required": ["serverAddress", "query", "threshold"],
        },
    },
}
SCALED_OBJECT: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["scaleTargetRef", "triggers"],
    "properties": {
        "scaleTargetRef": {"type": "object", "required": ["apiVersion", "kind", "name"]},
        "minReplicaCount": {"type": "integer"},
        "maxReplicaCount": {"type": "integer"},
        "advanced": {
            "type": "object",
            "properties": {
                "horizontalPodAutoscalerConfig": {
                    "type": "object",
                    "properties": {"behavior": {"type": "object"}},
                    "additionalProperties": False,
                }
            },
            "additionalProperties": False,
        },
        "triggers": {"type": "array", "items": TRIGGER},
    },
}
"""What we use of KEDA's ScaledObject (keda.sh/v1alpha1, KEDA 2)."""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def hpas() -> list[dict[str, Any]]:
    return documents("hpa.yaml")


def scaled_objects() -> list[dict[str, Any]]:
    return documents("keda.yaml")


@pytest.mark.parametrize("file", ["hpa.yaml", "keda.yaml"])
def test_each_role_has_one_within_the_bounds_of_the_serving(file: str) -> None:
    roles = {obj["metadata"]["name"]: obj for obj in children(SERVING) if obj["kind"] == "ServingRole"}
    limits = limits_of(parse(SERVING).spec)
    found = {}
    for obj in documents(file):
        spec = obj["spec"]
        target = spec["scaleTargetRef"]
        role = roles[target["name"]]
        assert (target["apiVersion"], target["kind"]) == (role["apiVersion"], role["kind"])
        bounds = getattr(limits, role["metadata"]["labels"]["duplex.dev/role"])
        names = ("minReplicas", "maxReplicas") if file == "hpa.yaml" else ("minReplicaCount", "maxReplicaCount")
        assert tuple(spec[name] for name in names) == (bounds.least, bounds.most)
        found[target["name"]] = obj
    assert found.keys() == roles.keys()


def test_the_hpas_are_what_kubernetes_knows_and_their_metrics_are_given_by_the_adapter() -> None:
    given = {rule["name"]["as"] for rule in documents("prometheus-adapter.yaml")[0]["rules"]["external"]}
    asked = set()
    for hpa in hpas():
        kubernetes_validate.validate(hpa, "1.36", strict=True)
        asked |= {metric["external"]["metric"]["name"] for metric in hpa["spec"]["metrics"]}
    assert asked == given


def test_kedas_objects_have_its_fields() -> None:
    for obj in scaled_objects():
        assert (obj["apiVersion"], obj["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
        jsonschema.Draft202012Validator(SCALED_OBJECT).validate(obj["spec"])


def test_both_ask_the_same_of_prometheus() -> None:
    rules = documents("prometheus-adapter.yaml")[0]["rules"]["external"]
    triggers = [trigger for obj in scaled_objects() for trigger in obj["spec"]["triggers"]]
    assert {rule["metricsQuery"] for rule in rules} == {trigger["metadata"]["query"] for trigger in triggers}
    assert all(rule["seriesQuery"] in rule["metricsQuery"] for rule in rules)
