"""The CRD, made from the models: `python -m duplex_operator.api.crd --write|--check crds/`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from duplex_connector.contract import GROUP, KIND, PLURAL, VERSION
from duplex_operator.api.models import DisaggregatedServing, Spec
from duplex_operator.api.status import Status
from duplex_operator.api.structural import schema_of

FILE_NAME: Final = f"{GROUP}_{PLURAL}.yaml"
SHORT_NAME: Final = "dsv"

_HEADER: Final = "# Made from duplex_operator.api by `make manifests`; edit the models, not this file.\n"
_READY: Final = '.status.conditions[?(@.type=="Ready")]'


def _column(name: str, path: str, kind: str = "string", priority: int = 0) -> dict[str, Any]:
    return {"name": name, "jsonPath": path, "type": kind, "priority": priority}


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


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD of DisaggregatedServing."""
    root = schema_of(DisaggregatedServing)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": list(COLUMNS),
                    "subresources": {"status": {}},
                    "schema": {
                        "openAPIV3Schema": {
                            "description": root["description"],
                            "type": "object",
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": schema_of(Spec),
                                "status": schema_of(Status, defaults=False),
                            },
                            "x-kubernetes-validations": root["x-kubernetes-validations"],
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
    """Return the CRD as the text of its file."""
    body: str = yaml.dump(custom_resource_definition(), Dumper=PlainDumper, sort_keys=False, width=120)
    return _HEADER + body


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the CRD into a folder, or check that it stands there unchanged; 1 where it does not."""
    parser = argparse.ArgumentParser(description="Make the CRD from the models.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", type=Path, metavar="FOLDER")
    mode.add_argument("--check", type=Path, metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    return write_or_check({FILE_NAME: crd_text()}, write=chosen.write, check=chosen.check)


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
