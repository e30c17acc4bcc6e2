"""The examples: each fits the CRD's schema, has no problem, and renders to what its golden file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from duplex_operator.api import DisaggregatedServing, validate
from duplex_operator.api.crd import PlainDumper, custom_resource_definition, role_definition
from duplex_operator.api.instances import instance_type
from duplex_operator.render import FleetRevision, RenderContext, render_fleet, render_serving, revision_of
from operator_tests.golden import assert_golden

EXAMPLES = sorted((Path(__file__).parents[4] / "examples").glob("*.yaml"))
GOLDEN = Path(__file__).parent / "golden"
CONTEXT = RenderContext(
    router_image="duplex.local/router:dev", connector_image="duplex.local/connector:dev", operator_version="0.1.0"
)


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def parse(path: Path) -> DisaggregatedServing:
    """Return an example as the operator reads it from the API server."""
    example = load(path)
    example["metadata"] |= {"namespace": "llm", "uid": "11111111-2222-3333-4444-555555555555", "generation": 1}
    return DisaggregatedServing.model_validate(example)


def children(path: Path) -> list[dict[str, Any]]:
    serving = parse(path)
    fleet = render_fleet(serving, [FleetRevision(revision_of(serving.spec))], (1, 1), [])
    return [*render_serving(serving, CONTEXT), fleet]


by_name = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"quickstart", "quickstart-vllm", "qwen3-32b-p5en", "glm-5-fp8-p5en"}


@by_name
def test_fits_the_schema(path: Path) -> None:
    jsonschema.Draft4Validator(closed(schema_in(custom_resource_definition()["spec"]))).validate(load(path))


def schema_in(definition: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = definition["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with no room for fields that it does not name, as kubectl's strict validation has it."""
    result = dict(schema)
    if "properties" in schema:
        result["properties"] = {name: closed(member) for name, member in schema["properties"].items()}
        result["additionalProperties"] = False
    if schema.get("type") == "object" and not {"properties", "additionalProperties"} & schema.keys():
        result["additionalProperties"] = True
    if "items" in schema:
        result["items"] = closed(schema["items"])
    return result


def test_the_node_group_is_of_a_known_type_in_one_zone() -> None:
    (group,) = load(EXAMPLES[0].parent / "eks" / "p5en-nodegroup.yaml")["managedNodeGroups"]
    assert instance_type(group["instanceType"]).efa == 16
    assert group["efaEnabled"] is True
    assert len(group["availabilityZones"]) == 1


@by_name
def test_has_no_problem(path: Path) -> None:
    assert validate(parse(path).spec) == []


@by_name
def test_renders_to_its_golden_file(path: Path) -> None:
    text = yaml.dump_all(children(path), Dumper=PlainDumper, sort_keys=False, width=120)
    assert_golden(GOLDEN / f"{path.stem}.yaml", text)


@by_name
def test_renders_objects_that_kubernetes_knows(path: Path) -> None:
    own = role_definition()["spec"]
    for child in children(path):
        if child["kind"] == own["names"]["kind"]:
            jsonschema.Draft4Validator(closed(schema_in(own))).validate(child)
        else:
            kubernetes_validate.validate(child, "1.36", strict=True)
