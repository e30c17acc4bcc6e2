"""Lint of whole objects and files: the API server's refusals, the operator's, and what is worth a second look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import yaml

from duplex_connector.contract import KIND
from duplex_operator.api import DisaggregatedServing, validate
from duplex_operator.api.crd import custom_resource_definition
from duplex_operator.api.models import API_VERSION
from duplex_operator.lint.advice import advice
from duplex_operator.lint.findings import Finding, error, member
from duplex_operator.lint.memory import ModelFiles
from duplex_operator.lint.rules import broken_rules
from duplex_operator.lint.schema import Schema, defaulted, out_of_bounds, unknown_fields

_METADATA: Final = "metadata"


class _StrictLoader(yaml.SafeLoader):
    """Refuses a mapping with the same key twice, as a strict apply does; YAML's own loader takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's
        """Construct the mapping after looking at its keys."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is there twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def lint_documents(text: str, model: ModelFiles | None = None) -> list[tuple[str, list[Finding]]]:
    """Return (name, findings) of every DisaggregatedServing in a YAML text; other kinds are left to the cluster."""
    try:
        documents = [document for document in yaml.load_all(text, Loader=_StrictLoader) if document is not None]
    except yaml.YAMLError as problem:
        return [("", [error("", f"cannot be read as YAML: {' '.join(str(problem).split())}")])]
    found = []
    for document in documents:
        if not isinstance(document, Mapping):
            found.append(("", [error("", "must be an object with apiVersion, kind, metadata and spec")]))
        elif document.get("kind") == KIND:
            name = (document.get(_METADATA) or {}).get("name") if isinstance(document.get(_METADATA), Mapping) else ""
            found.append((str(name or ""), lint_object(document, model)))
    return found


def lint_object(obj: Mapping[str, Any], model: ModelFiles | None = None) -> list[Finding]:
    """Return what is found in one object, in the order in which the cluster would find it.

    Later checks need what earlier ones guarantee, so an object that one refuses is not shown to the next: as on the
    API server, which tries no rule on an object that breaks its schema. Raises ConfigError where `model` does not say
    what the arithmetic needs.
    """
    schema = _schema()
    for check in (_head, lambda one: unknown_fields(schema, one)):
        if found := check(obj):
            return found
    filled = defaulted(schema, obj)
    for look in (out_of_bounds, broken_rules):
        if found := look(schema, filled):
            return found
    serving = DisaggregatedServing.model_validate(_placed(filled))
    stalls = [error(member("spec", problem.field), problem.message) for problem in validate(serving.spec)]
    return stalls or list(advice(serving, model))


def _head(obj: Mapping[str, Any]) -> list[Finding]:
    return list(_head_problems(obj))


def _head_problems(obj: Mapping[str, Any]) -> Iterator[Finding]:
    if obj.get("apiVersion") != API_VERSION:
        yield error("apiVersion", f"must be {API_VERSION}, not {obj.get('apiVersion')!r}")
    metadata = obj.get(_METADATA)
    if not isinstance(metadata, Mapping) or not metadata.get("name"):
        yield error("metadata.name", "required")


@cache
def _schema() -> Schema:
    schema: dict[str, Any] = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def stored(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return a good object as the cluster would store it."""
    return _placed(defaulted(_schema(), obj))


def _placed(filled: dict[str, Any]) -> dict[str, Any]:
    """Return the object as it stands in a namespace: that of the kubeconfig is not known here."""
    return {**filled, _METADATA: {"namespace": "default", **filled[_METADATA]}}
