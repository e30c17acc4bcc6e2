"""The API server's checks of an object against a structural schema: unknown fields, defaults, bounds, list keys.

After https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/ (pruning, nulls,
defaulting) and KEP-2876 (rules run on what has passed the schema).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from jsonschema import Draft4Validator, ValidationError

from duplex_operator.lint.findings import Finding, error, member

Schema = Mapping[str, Any]

_OPEN: Final = "x-kubernetes-preserve-unknown-fields"
_LIST_TYPE: Final = "x-kubernetes-list-type"
_LIST_KEYS: Final = "x-kubernetes-list-map-keys"


def children(schema: Schema, value: object, path: str) -> Iterator[tuple[Schema, object, str]]:
    """Yield (schema, value, path) of each part of a value that its schema describes."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if isinstance(inner, Mapping):
                yield inner, part, member(path, name)
    elif isinstance(value, list) and "items" in schema:
        for index, part in enumerate(value):
            yield schema["items"], part, f"{path}[{index}]"


def unknown_fields(schema: Schema, value: object, path: str = "") -> list[Finding]:
    """Return the fields that the schema does not have, which a strict apply refuses."""
    found = []
    if isinstance(value, Mapping) and "properties" in schema and not schema.get(_OPEN):
        for name in value:
            if name not in schema["properties"]:
                near = _nearest(name, schema["properties"])
                found.append(error(member(path, name), "unknown field" + (f"; did you mean {near}?" if near else "")))
    for inner, part, where in children(schema, value, path):
        found += unknown_fields(inner, part, where)
    return found


def _nearest(name: str, known: Mapping[str, object]) -> str:
    flat = {known_name.lower().replace("_", ""): known_name for known_name in known}
    return flat.get(str(name).lower().replace("_", "").replace("-", ""), "")


def defaulted(schema: Schema, value: object) -> Any:  # noqa: ANN401 - JSON
    """Return a copy with nulls dropped and defaults filled in, as the API server stores it."""
    if isinstance(value, list):
        return [defaulted(schema.get("items", {}), part) for part in value]
    if not isinstance(value, Mapping):
        return value
    properties = schema.get("properties", {})
    filled = {name: part for name, part in value.items() if part is not None or name not in properties}
    for name, inner in properties.items():
        if name not in filled and "default" in inner:
            filled[name] = deepcopy(inner["default"])
    values = schema.get("additionalProperties", {})
    return {name: defaulted(properties.get(name, values), part) for name, part in filled.items()}


def out_of_bounds(schema: Schema, value: object) -> list[Finding]:
    """Return where a value breaks types, bounds, patterns and required fields, or names a list's key twice."""
    validator = Draft4Validator(_as_json_schema(schema))
    found = [_explained(problem) for problem in sorted(validator.iter_errors(value), key=lambda one: list(one.path))]
    return found + _duplicates(schema, value, "")


def _as_json_schema(schema: Schema) -> dict[str, Any]:
    """Return the schema for a JSON Schema validator, which spells int-or-string otherwise."""
    out = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-") and key != "format"}
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "properties" in schema:
        out["properties"] = {name: _as_json_schema(inner) for name, inner in schema["properties"].items()}
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), Mapping):
            out[name] = _as_json_schema(schema[name])
    return out


def _explained(problem: ValidationError) -> Finding:
    path = ""
    for part in problem.absolute_path:
        path = f"{path}[{part}]" if isinstance(part, int) else member(path, str(part))
    if problem.validator == "required":
        missing = next((name for name in problem.validator_value if name not in problem.instance), "")
        return error(member(path, missing), "required")
    return error(path, _words(problem))


def _words(problem: ValidationError) -> str:
    bound, seen = problem.validator_value, problem.instance
    texts: dict[str, str] = {
        "enum": f"{seen!r} is not one of {', '.join(map(str, bound)) if isinstance(bound, list) else bound}",
        "pattern": f"{seen!r} does not match {bound}",
        "minimum": f"{seen} is less than {bound}",
        "maximum": f"{seen} is more than {bound}",
        "minLength": f"must have at least {bound} character(s)",
        "maxLength": f"has more than {bound} characters",
        "maxItems": f"has more than {bound} items",
        "minItems": f"must have at least {bound} item(s)",
        "type": f"must be of type {bound}, not {type(seen).__name__}",
    }
    return texts.get(str(problem.validator), str(problem.message))


def _duplicates(schema: Schema, value: object, path: str) -> list[Finding]:
    found = []
    if isinstance(value, list) and schema.get(_LIST_TYPE) in ("map", "set"):
        keys = schema.get(_LIST_KEYS, ())
        seen: list[object] = []
        for index, part in enumerate(value):
            key = [part.get(name) for name in keys] if isinstance(part, Mapping) and keys else part
            if key in seen:
                found.append(error(f"{path}[{index}]", f"{part!r} is there twice"))
            seen.append(key)
    for inner, part, where in children(schema, value, path):
        found += _duplicates(inner, part, where)
    return found
