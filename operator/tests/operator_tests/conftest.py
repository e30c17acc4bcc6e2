"""Fixtures for tests against a real API server: one control plane a run, one namespace a test.

Pods do not run: pretended nodes (kwok) make them Ready at once where they can be scheduled.
"""

import json
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from duplex_kube.api import KubeObject
from duplex_kube.client import Client, connect
from duplex_lab.control_plane import ControlPlane
from duplex_operator.reconcile.writer import Writer
from harness.kstatus import broken_rules

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a control plane with one pretended node and the CRDs installed."""
    with ControlPlane(tmp_path_factory.mktemp("cluster") / "control-plane", fake_nodes=1) as cluster:
        for crd in sorted((ROOT / "crds").glob("*.yaml")):
            cluster.kubectl("apply", "--server-side", "--field-manager=helm", "-f", str(crd))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        yield cluster


@pytest.fixture(autouse=True)
def every_status_keeps_the_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check the status that each reconcile of each test comes to, written or not."""
    broken: list[str] = []
    write = Writer.write_status

    async def checked(self: Writer, serving: KubeObject, status: KubeObject) -> KubeObject:
        broken.extend(broken_rules(serving, status))
        return await write(self, serving, status)

    monkeypatch.setattr(Writer, "write_status", checked)
    yield
    assert not broken, broken


@pytest.fixture
async def kube_api(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """Connect to it as the cluster's administrator."""
    async with await connect(control_plane.kubeconfig, user_agent="duplex-test") as client:
        yield client


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """Make a namespace of the test's own, deleted after it."""
    name = f"test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def apply(control_plane: ControlPlane) -> Any:
    """Apply an object as a user would; the function returns what kubectl says, also when it is refused."""

    def apply_object(obj: dict[str, Any]) -> Any:
        return control_plane.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(obj), check=False
        )

    return apply_object
