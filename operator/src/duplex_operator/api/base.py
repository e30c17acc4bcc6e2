"""What every API model shares: camelCase names, tolerant reading, CEL rules as data, Kubernetes' small types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel


@dataclass(frozen=True)
class Rule:
    """One CEL rule of the CRD: `expression` holds for good objects, `message` names the field and the remedy."""

    expression: str
    message: str

    def as_schema(self) -> dict[str, str]:
        """Return the entry of x-kubernetes-validations."""
        return {"rule": self.expression, "message": self.message}


def with_rules(*rules: Rule) -> ConfigDict:
    """Return the model configuration that attaches CEL rules to a model's schema."""
    validations: list[Any] = [rule.as_schema() for rule in rules]
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": validations})


class ApiModel(BaseModel):
    """Base of all API models.

    Reading ignores fields it does not know, so that a newer object does not stop an older operator.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )


LIST_MAP_BY_NAME: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""Schema of a list whose items are known by their name, so that two writers can each own some of them."""

ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
"""Schema of a list that has one owner as a whole, because its order means something."""

Quantity = Annotated[
    int | str,
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 64,
            "pattern": r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[numkMGTPE]|[eE][0-9]+)?$",
        }
    ),
]
"""A Kubernetes quantity: `4`, `500m`, `1Ti`."""

PodTemplate = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""A partial PodTemplateSpec; its inside is checked by the API server when the pods are created."""

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""Name of another object in the same namespace."""

ShortText = Annotated[str, Field(min_length=1, max_length=253)]


class SecretKey(ApiModel):
    """One key of a Secret in the serving's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253)] = "token"
    """Key in the Secret."""


class KeySelector(ApiModel):
    """One key of a Secret or ConfigMap, for an environment variable."""

    name: ObjectName
    """Name of the Secret or ConfigMap."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """Key in it."""
    optional: bool | None = None
    """True: the variable is left out where the key is missing."""


class FieldSelector(ApiModel):
    """A field of the pod, for an environment variable."""

    field_path: Annotated[str, Field(min_length=1, max_length=253)]
    """Path, such as `status.hostIP`."""


class EnvVarSource(ApiModel):
    """Where the value of an environment variable comes from."""

    model_config = with_rules(
        Rule(
            "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)].filter(x, x).size() == 1",
            "valueFrom: name exactly one of secretKeyRef, configMapKeyRef, fieldRef",
        )
    )

    secret_key_ref: KeySelector | None = None
    """A key of a Secret."""
    config_map_key_ref: KeySelector | None = None
    """A key of a ConfigMap."""
    field_ref: FieldSelector | None = None
    """A field of the pod."""


class EnvVar(ApiModel):
    """One environment variable of the engine container."""

    model_config = with_rules(
        Rule("!(has(self.value) && has(self.valueFrom))", "env: give value or valueFrom, not both"),
    )

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Value."""
    value_from: EnvVarSource | None = None
    """Source of the value."""


class Resources(ApiModel):
    """Compute resources of a container; merged over what the instance type gives."""

    requests: Annotated[dict[str, Quantity], Field(max_length=16)] | None = None
    """Least amounts, by resource name."""
    limits: Annotated[dict[str, Quantity], Field(max_length=16)] | None = None
    """Greatest amounts, by resource name."""


class Switch(ApiModel):
    """Something that is on or off."""

    enabled: bool = False
    """True: on."""


class Bounds(ApiModel):
    """An inclusive range that automatic tuning may move within."""

    model_config = with_rules(Rule("self.min <= self.max", "min must not be above max"))

    min: Annotated[int, Field(ge=0, le=1_000_000)]
    """Least value."""
    max: Annotated[int, Field(ge=0, le=1_000_000)]
    """Greatest value."""


@dataclass(frozen=True)
class Problem:
    """A mistake in a spec that the CRD's rules cannot see: the field's path below spec, and what to do."""

    field: str
    message: str
