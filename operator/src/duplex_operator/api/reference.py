"""The reference pages, made from the models and the instance table: `python -m duplex_operator.api.reference`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from duplex_operator.api.crd import custom_resource_definition, role_definition, write_or_check
from duplex_operator.api.instances import INSTANCE_TYPES, Accelerator, InstanceType

SERVING_PAGE: Final = "disaggregatedserving.md"
ROLE_PAGE: Final = "servingrole.md"
INSTANCES_PAGE: Final = "instances.md"

_NOTE: Final = "<!-- Made by `make manifests`; edit the models, not this page. -->\n"
_ENUM_SHOWN: Final = 12


_SERVING: Final = """{note}
# DisaggregatedServing (duplex.dev/v1alpha1)

{description} Short name: `dsv`.

A field that this release does not act on is refused when the object is applied. Defaults that depend on other fields
are said in words; all others stand in the table.

## spec

{spec}

## Rules

The API server refuses an object that breaks one of these:

{rules}

What they cannot say (defaults that follow from the instance type, version rows, what a podTemplate may change) ends in
the condition `Stalled` with the remedy.

## status

{status}

## Columns of `kubectl get dsv`

| column | field | |
|---|---|---|
{columns}
"""

_ROLE: Final = """{note}
# ServingRole (duplex.dev/v1alpha1)

{description} Short name: `dsr`. The operator makes two for each serving, `<serving>-prefill` and `<serving>-decode`,
owned by it: they keep their names through every rollout. How to use them: [how-to/scale.md](../how-to/scale.md).

## spec

{spec}

## status

{status}

## Columns of `kubectl get dsr`

| column | field | |
|---|---|---|
{columns}
"""

_INSTANCES: Final = """{note}
# Instance types

What `prefill.instanceType` and `decode.instanceType` may be; each EC2 type also with HyperPod's `ml.` before it.
A pod with a part of the devices gets its share of EFA interfaces, rounded up.

| type | devices | memory of each (GiB) | tensor parallel ranks | EFA | Gbit/s | vCPU | memory (GiB) |
|---|---|---|---|---|---|---|---|
{rows}

`cpu` stands for any node, without devices, with KV moving over TCP: real vLLM on CPU, or the simulator.

On Neuron, ranks are logical cores at the default setting (two physical cores each on Trainium2).
"""


def serving_page() -> str:
    """Return the page of all fields, rules and columns of DisaggregatedServing."""
    schema = _schema(custom_resource_definition())
    rules = "\n".join(f"- {message}" for message in _messages(schema))
    return _SERVING.format(rules=rules, **_parts(custom_resource_definition()))


def role_page() -> str:
    """Return the page of ServingRole."""
    return _ROLE.format(**_parts(role_definition()))


def _schema(definition: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _parts(definition: dict[str, Any]) -> dict[str, str]:
    """Return what the pages of all kinds have."""
    schema = _schema(definition)
    columns = [
        f"| {column['name'].upper()} | `{column['jsonPath']}` | {'wide' if column['priority'] else ''} |"
        for column in definition["spec"]["versions"][0]["additionalPrinterColumns"]
    ]
    return {
        "note": _NOTE,
        "description": schema["description"],
        "spec": "\n".join(_table(schema["properties"]["spec"])),
        "status": "\n".join(_table(schema["properties"]["status"])),
        "columns": "\n".join(columns),
    }


def pages() -> dict[str, str]:
    """Return the text of every page by the name of its file."""
    return {SERVING_PAGE: serving_page(), ROLE_PAGE: role_page(), INSTANCES_PAGE: instances_page()}


def instances_page() -> str:
    """Return the page of instance types."""
    rows = [_instance_row(instance) for instance in INSTANCE_TYPES if instance.devices]
    return _INSTANCES.format(note=_NOTE, rows="\n".join(rows))


def _instance_row(instance: InstanceType) -> str:
    ranks = instance.devices * instance.cores_per_device
    memory = f"{instance.device_memory_mib / 1024:.0f}"
    device = "Neuron" if instance.accelerator is Accelerator.NEURON else "NVIDIA"
    return (
        f"| `{instance.name}` | {instance.devices} {device} {instance.device_name} | {memory} | {ranks} "
        f"| {instance.efa} | {instance.efa_gbps} | {instance.vcpu} | {instance.memory_gib} |"
    )


def _table(schema: dict[str, Any]) -> Iterator[str]:
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    yield from _rows(schema, "")


def _rows(schema: dict[str, Any], prefix: str) -> Iterator[str]:
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        default = "required" if name in required else _default(field)
        meaning = " ".join(field.get("description", "").split()).replace("|", "\\|")
        yield f"| `{path}` | {_type(field)} | {default} | {meaning} |"
        yield from _rows(field, f"{path}.")
        yield from _rows(field.get("items", {}), f"{path}[].")


def _default(field: dict[str, Any]) -> str:
    default = field.get("default", {})
    return "" if isinstance(default, dict) else f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _type(field: dict[str, Any]) -> str:
    if "enum" in field and len(field["enum"]) <= _ENUM_SHOWN:
        return " \\| ".join(f"`{value}`" for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    if "additionalProperties" in field:
        return f"map to {_type(field['additionalProperties'])}"
    bounds = [str(field[bound]) for bound in ("minimum", "maximum") if bound in field]
    kind = str(field["type"])
    both = 2
    return f"{kind}, {'..'.join(bounds)}" if len(bounds) == both else kind


def _messages(schema: dict[str, Any]) -> list[str]:
    """Return the message of each rule once, in the order of the fields."""
    found: dict[str, None] = {}

    def walk(node: dict[str, Any]) -> None:
        found.update((rule["message"], None) for rule in node.get("x-kubernetes-validations", ()))
        for member in node.get("properties", {}).values():
            walk(member)
        if "items" in node:
            walk(node["items"])

    walk(schema)
    return list(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages into a folder, or check that they stand there unchanged; 1 where one does not."""
    parser = argparse.ArgumentParser(description="Make the reference pages from the models.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", type=Path, metavar="FOLDER")
    mode.add_argument("--check", type=Path, metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    return write_or_check(pages(), write=chosen.write, check=chosen.check)


if __name__ == "__main__":
    raise SystemExit(main())
