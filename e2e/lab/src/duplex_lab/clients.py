"""kubectl and helm as subprocesses whose caches and settings stay in the lab's folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from duplex_lab.errors import LabError


def client_environment(kubeconfig: Path) -> dict[str, str]:
    """Return our environment with kubectl and helm pointed at one cluster and at caches beside its kubeconfig."""
    home = kubeconfig.parent / "clients"
    return {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "KUBECACHEDIR": str(home / "kube"),
        "KUBERC": "off",
        "HELM_CACHE_HOME": str(home / "helm-cache"),
        "HELM_CONFIG_HOME": str(home / "helm-config"),
        "HELM_DATA_HOME": str(home / "helm-data"),
    }


def run_client(
    program: Path,
    arguments: Sequence[str],
    kubeconfig: Path,
    *,
    input_text: str | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a client to its end with captured output; LabError with the client's own words when it fails and check."""
    done = subprocess.run(
        [program, *arguments],
        env=client_environment(kubeconfig),
        input=input_text,
        stdin=subprocess.DEVNULL if input_text is None else None,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and done.returncode:
        words = " ".join([program.name, *arguments])
        raise LabError(f"`{words}` failed ({done.returncode}): {done.stderr.strip() or done.stdout.strip()}")
    return done
