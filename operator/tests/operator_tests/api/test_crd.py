"""The CRD: committed as generated, small, bounded, and true to the models."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import Field

from duplex_operator.api import Spec, crd, reference
from duplex_operator.api.base import ApiModel
from duplex_operator.api.structural import schema_of
from operator_tests.api.cel_cases import CASES
from operator_tests.api.objects import MINIMAL_SPEC, serving

REPOSITORY = Path(__file__).parents[4]
MOST_BYTES = 200_000


@functools.cache
def schema() -> dict[str, Any]:
    version = crd.custom_resource_definition()["spec"]["versions"][0]
    result: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return result


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, member in node.get("properties", {}).items():
        yield from nodes(member, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if key in node:
            yield from nodes(node[key], path + mark)


def messages() -> list[str]:
    return [rule["message"] for _, node in nodes(schema()) for rule in node.get("x-kubernetes-validations", ())]


def test_the_committed_crd_is_the_generated_one() -> None:
    assert crd.main(["--check", str(REPOSITORY / "crds")]) == 0


def test_the_committed_reference_pages_are_the_generated_ones() -> None:
    assert reference.main(["--check", str(REPOSITORY / "docs" / "reference")]) == 0


def test_check_finds_a_changed_and_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--check", str(tmp_path)]) == 1
    assert "make manifests" in capsys.readouterr().err
    assert crd.main(["--write", str(tmp_path)]) == 0
    assert crd.main(["--check", str(tmp_path)]) == 0
    written = tmp_path / crd.FILE_NAME
    written.write_text(written.read_text().replace("dsv", "xyz"))
    assert crd.main(["--check", str(tmp_path)]) == 1


def test_the_crd_is_small_enough_for_client_side_apply() -> None:
    assert len(crd.crd_text().encode()) < MOST_BYTES


def test_the_crd_is_one_plain_document_without_aliases() -> None:
    text = crd.crd_text()
    assert "&id" not in text
    assert yaml.safe_load(text) == crd.custom_resource_definition()


ROLE_SCHEMA = crd.role_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize("kind", ["serving", "role"])
def test_every_string_list_and_map_is_bounded(kind: str) -> None:
    whole = schema() if kind == "serving" else ROLE_SCHEMA
    for part in ("spec", "status"):
        for path, node in nodes(whole["properties"][part], part):
            if node.get("type") == "string":
                assert "maxLength" in node or "enum" in node, path
            if node.get("type") == "array":
                assert "maxItems" in node, path
            if "additionalProperties" in node:
                assert "maxProperties" in node, path


def test_every_field_says_what_it_means() -> None:
    both = [schema()["properties"]["spec"], *ROLE_SCHEMA["properties"].values()]
    for path, node in [each for one in both if "properties" in one for each in nodes(one, "spec")]:
        if not path.endswith(("[]", "*")):
            assert node.get("description"), path


def test_status_has_no_defaults() -> None:
    assert [path for path, node in nodes(schema()["properties"]["status"]) if "default" in node] == []


def test_defaults_of_the_schema_are_those_of_the_models() -> None:
    def fill(node: dict[str, Any], value: object) -> object:
        """Return a value as the API server stores it: with the schema's defaults."""
        if not isinstance(value, dict) or "properties" not in node:
            return value
        filled = {name: fill(member, value[name]) for name, member in node["properties"].items() if name in value}
        missing = {
            name: fill(member, member["default"])
            for name, member in node["properties"].items()
            if name not in value and "default" in member
        }
        return filled | missing

    stored = fill(schema()["properties"]["spec"], MINIMAL_SPEC)
    assert stored == Spec.model_validate(MINIMAL_SPEC).model_dump(mode="json", by_alias=True, exclude_none=True)


def test_the_scale_of_a_role_names_fields_of_its_schema() -> None:
    scale = crd.role_definition()["spec"]["versions"][0]["subresources"]["scale"]
    assert set(scale.values()) <= {path for path, _ in nodes(ROLE_SCHEMA)}
    assert "default" not in str(ROLE_SCHEMA), "a number by default would be what an autoscaler finds"


def test_the_columns_name_fields_of_the_schema() -> None:
    paths = {path for path, _ in nodes(schema())}
    for column in crd.COLUMNS:
        path = column["jsonPath"]
        if path.startswith((".spec", ".status")) and "[?" not in path:
            assert path in paths
    assert [column["name"] for column in crd.COLUMNS if not column["priority"]] == [
        "Model",
        "Prefill",
        "Decode",
        "Router",
        "Transport",
        "Reuse",
        "Held",
        "Ready",
        "Age",
    ]


def test_every_rule_has_a_case() -> None:
    for message in set(messages()):
        assert [case.rule for case in CASES if message.startswith(case.rule)], f"no case for: {message}"
    for case in CASES:
        assert len({message for message in messages() if message.startswith(case.rule)}) == 1, case.rule


class Either(ApiModel):
    value: int | str


class Inner(ApiModel):
    size: Annotated[int, Field(gt=0)] = 1


class Tree(ApiModel):
    children: Annotated[list[Tree], Field(max_length=2)]


class Both(ApiModel):
    value: Annotated[int, Field(ge=0, gt=1)]


class Anything(ApiModel):
    values: Annotated[dict[str, object], Field(max_length=2)]


@pytest.mark.parametrize(
    ("model", "said"),
    [(Either, "union of 2"), (Tree, "contains itself"), (Both, "stand together"), (Anything, "without members")],
)
def test_what_a_structural_schema_cannot_say_is_refused(model: type[ApiModel], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        schema_of(model)


def test_exclusive_bounds_become_flags_and_optional_becomes_absent() -> None:
    class Outer(ApiModel):
        inner: Inner = Inner()
        maybe: Inner | None = None

    properties = schema_of(Outer)["properties"]
    assert properties["inner"]["properties"]["size"] == {
        "type": "integer",
        "minimum": 0,
        "exclusiveMinimum": True,
        "default": 1,
    }
    assert properties["inner"]["default"] == {"size": 1}
    assert "default" not in properties["maybe"]


def test_the_models_name_the_kind_of_the_contract() -> None:
    names = crd.custom_resource_definition()["spec"]
    given = serving()
    assert given.api_version == f"{names['group']}/{names['versions'][0]['name']}"
    assert given.kind == names["names"]["kind"]
