"""Generate whatever is made from the models: CRDs, the chart's copies of them, reference pages (`make manifests`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from duplex_operator.api.crd import crd_files, write_or_check
from duplex_operator.api.reference import pages

ROOT = Path(__file__).resolve().parents[1]

_METADATA = "metadata:\n"
_KEPT = """metadata:
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


def chart_crd(text: str) -> str:
    """Return a CRD as a template of the chart: installed if asked for, and kept when the chart goes.

    In templates and not in the chart's crds folder, because Helm never upgrades what stands there.
    """
    if "{{" in text:
        raise ValueError("the CRD holds {{, which Helm would read as a template: spell it differently in the models")
    if text.count(f"\n{_METADATA}") != 1:
        raise ValueError("the CRD has no metadata of its own to annotate")
    body = text.replace(f"\n{_METADATA}", f"\n{_KEPT}")
    return "{{- if .Values.crds.enabled }}\n" + body + "{{- end }}\n"


def generated() -> dict[str, dict[str, str]]:
    """Return the text of every generated file, by folder and name."""
    return {
        "crds": crd_files(),
        "charts/duplex-operator/templates/crds": {name: chart_crd(text) for name, text in crd_files().items()},
        "docs/reference": pages(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write everything, or check that nothing would change; 1 where it would."""
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    statuses = [
        write_or_check(
            files, write=ROOT / folder if options.write else None, check=ROOT / folder if options.check else None
        )
        for folder, files in generated().items()
    ]
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
