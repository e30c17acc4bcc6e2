"""The CRDs, made from the models: `python -m duplex_operator.api.crd --write|--check crds/`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from duplex_connector.contract import GROUP, KIND, PLURAL, ROLE_KIND, ROLE_PLURAL, VERSION, Label
from duplex_operator.api.models import DisaggregatedServing, Spec
from duplex_operator.api.serving_role import ServingRole
from duplex_operator.api.status import Status
from duplex_operator.api.structural import schema_of

FILE_NAME: Final = f"{GROUP}_{PLURAL}.yaml"
ROLE_FILE_NAME: Final = f"{GROUP}_{ROLE_PLURAL}.yaml"
SHORT_NAME: Final = "dsv"
ROLE_SHORT_NAME: Final = "dsr"

_HEADER: Final = "# Made from duplex_operator.api by `make manifests`; edit the models, not this file.\n"
_READY: Final = '.status.conditions[?(@.type=="Ready")]'


def _column(name: str, path: str, kind: str = "string", priority: int = 0) -> dict[str, Any]:
    return {"name": name, "jsonPath": path, "type": kind, "priority": priority}


def _label_path(label: str) -> str:
    return ".metadata.labels." + label.replace(".", "\\.")


COLUMNS: Final = (
    _column("Model", ".spec.model.id"),
    _column("Prefill", ".status.prefill.summary"),
    _column("Decode", ".status.decode.summary"),
    _column("Router", ".status.router.summary"),
    _column("Transport", ".status.transport.network"),
    _column("Reuse", ".status.reuse.summary"),
    _column("Held", ".status.retention.summary"),
    _column("Ready", f"{_READY}.status"),
    _column("Age", ".metadata.creationTimestamp", "date"),
    _column("Revision", ".status.revision", priority=1),
    _column("TTL", ".spec.kvTransfer.bidirectional.ttlSeconds", "integer", priority=1),
    _column("Threshold", ".spec.kvTransfer.bidirectional.recomputeThresholdTokens", "integer", priority=1),
    _column("Reason", f"{_READY}.reason", priority=1),
)
"""What `kubectl get dsv` shows; priority 1 with -o wide."""


ROLE_COLUMNS: Final = (
    _column("Serving", _label_path(Label.SERVING)),
    _column("Role", _label_path(Label.ROLE)),
    _column("Mode", ".status.mode"),
    _column("Asked", ".spec.replicas", "integer"),
    _column("Wanted", ".status.wanted", "integer"),
    _column("Ready", ".status.ready", "integer"),
    _column("Age", ".metadata.creationTimestamp", "date"),
    _column("Message", ".status.message", priority=1),
)
"""What `kubectl get dsr` shows."""

_SCALE: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD of DisaggregatedServing."""
    root = schema_of(DisaggregatedServing)
    parts = {"spec": schema_of(Spec), "status": schema_of(Status, defaults=False)}
    schema = {
        "description": root["description"],
        "required": ["spec"],
        "properties": parts,
        "x-kubernetes-validations": root["x-kubernetes-validations"],
    }
    return _definition((KIND, PLURAL, SHORT_NAME), COLUMNS, {"status": {}}, schema)


def role_definition() -> dict[str, Any]:
    """Return the CRD of ServingRole."""
    root = schema_of(ServingRole, defaults=False)
    schema = {"description": root["description"], "properties": root["properties"]}
    names = (ROLE_KIND, ROLE_PLURAL, ROLE_SHORT_NAME)
    return _definition(names, ROLE_COLUMNS, {"status": {}, "scale": _SCALE}, schema)


def _definition(
    names: tuple[str, str, str], columns: Sequence[dict[str, Any]], subresources: dict[str, Any], schema: dict[str, Any]
) -> dict[str, Any]:
    """Return a CRD; ``names`` are kind, plural and short name, ``schema`` says what is the kind's own."""
    kind, plural, short = names
    every = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": list(columns),
                    "subresources": subresources,
                    "schema": {
                        "openAPIV3Schema": {
                            "description": schema["description"],
                            "type": "object",
                            **{key: value for key, value in schema.items() if key != "description"},
                            "properties": every | schema["properties"],
                        }
                    },
                }
            ],
        },
    }


class PlainDumper(yaml.SafeDumper):
    """Writes equal parts out each time: people read the file, and some tools refuse YAML aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature of yaml's method
        """Never write an alias."""
        return True


def crd_text() -> str:
    """Return the CRD of DisaggregatedServing as the text of its file."""
    return _text(custom_resource_definition())


def crd_files() -> dict[str, str]:
    """Return the text of every CRD by the name of its file."""
    return {FILE_NAME: crd_text(), ROLE_FILE_NAME: _text(role_definition())}


def _text(definition: dict[str, Any]) -> str:
    body: str = yaml.dump(definition, Dumper=PlainDumper, sort_keys=False, width=120)
    return _HEADER + body


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the CRDs into a folder, or check that they stand there unchanged; 1 where one does not."""
    parser = argparse.ArgumentParser(description="Make the CRDs from the models.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", type=Path, metavar="FOLDER")
    mode.add_argument("--check", type=Path, metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    return write_or_check(crd_files(), write=chosen.write, check=chosen.check)


def write_or_check(files: dict[str, str], *, write: Path | None, check: Path | None) -> int:
    """Write generated files into a folder, or compare them with what stands there; return the exit status."""
    if write is not None:
        write.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (write / name).write_text(text)
    if check is not None:
        for name, text in files.items():
            path = check / name
            if not path.is_file() or path.read_text() != text:
                sys.stderr.write(f"{path} differs from the models: run `make manifests`\n")
                return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
