"""From pydantic models to Kubernetes structural schemas (OpenAPI v3 without references and unions).

Rules: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/ "structural".
What such a schema cannot express raises ValueError with the path, when the CRD is made, not when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

Schema = dict[str, Any]

_DROPPED: Final = {"title", "$defs", "examples", "const"}
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


def schema_of(model: type[BaseModel], *, defaults: bool = True) -> Schema:
    """Return the structural schema of a model; without `defaults` for status, which nobody but its writer fills."""
    source = model.model_json_schema(by_alias=True, mode="validation")
    return _Translation(source.get("$defs", {}), keep_defaults=defaults).translate(source, model.__name__, ())


class _Translation:
    """One walk over a model's JSON Schema."""

    def __init__(self, definitions: Mapping[str, Schema], *, keep_defaults: bool) -> None:
        self._definitions = definitions
        self._keep_defaults = keep_defaults

    def translate(self, schema: Schema, path: str, inside: tuple[str, ...]) -> Schema:
        """Return the structural form of one schema; `inside` names the models around it."""
        if "$ref" in schema:
            return self._referred(schema, path, inside)
        if "oneOf" in schema or "allOf" in schema or "discriminator" in schema:
            raise ValueError(f"{path}: a union of models: use optional members and a CEL rule 'exactly one of'")
        if "anyOf" in schema and _INT_OR_STRING not in schema:
            return self.translate(_without_null(schema, path), path, inside)
        out = {key: value for key, value in schema.items() if key not in _DROPPED}
        if "const" in schema:
            out["enum"] = [schema["const"]]
        _settle_bounds(out, path)
        self._settle_members(out, path, inside)
        self._settle_default(out)
        _refuse_shapeless(out, path)
        return out

    def _referred(self, schema: Schema, path: str, inside: tuple[str, ...]) -> Schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        if name in inside:
            raise ValueError(f"{path}: the model {name} contains itself, which a structural schema cannot say")
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        return self.translate(self._definitions[name] | siblings, path, (*inside, name))

    def _settle_default(self, out: Schema) -> None:
        """Make an object's default that of its members: the API server tries the rules on it as it stands."""
        if not self._keep_defaults or out.get("default", ...) is None:
            out.pop("default", None)
        elif "properties" in out and "default" in out:
            out["default"] = {
                name: member["default"] for name, member in out["properties"].items() if "default" in member
            }

    def _settle_members(self, out: Schema, path: str, inside: tuple[str, ...]) -> None:
        values = out.pop("additionalProperties", None)
        if "properties" in out:
            out["properties"] = {
                key: self.translate(value, f"{path}.{key}", inside) for key, value in out["properties"].items()
            }
        elif isinstance(values, dict):
            out["additionalProperties"] = self.translate(values, f"{path}.*", inside)
        if "items" in out:
            out["items"] = self.translate(out["items"], f"{path}[]", inside)


def _without_null(schema: Schema, path: str) -> Schema:
    """Return the schema of an optional field: it may be absent, and null is never written."""
    members = [member for member in schema["anyOf"] if member.get("type") != "null"]
    if len(members) != 1:
        raise ValueError(f"{path}: a union of {len(members)} types: use int-or-string, or one object with CEL rules")
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**members[0], **rest}


def _settle_bounds(out: Schema, path: str) -> None:
    """Exclusive bounds are numbers in JSON Schema and flags in OpenAPI v3.0."""
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in out:
            if inclusive in out:
                raise ValueError(f"{path}: {inclusive} and {exclusive} cannot stand together")
            out[inclusive], out[exclusive] = out[exclusive], True


def _refuse_shapeless(out: Schema, path: str) -> None:
    if "type" not in out and not out.get(_INT_OR_STRING):
        raise ValueError(f"{path}: no type")
    if out.get("type") == "array" and "items" not in out:
        raise ValueError(f"{path}: an array without items")
    if out.get("type") == "object" and not {"properties", "additionalProperties", _PRESERVE} & out.keys():
        raise ValueError(f"{path}: an object without members")
