"""The control plane against its own API: it starts, serves, survives a restart, and leaves no process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from duplex_lab.control_plane import ControlPlane
from duplex_lab.errors import LabError
from duplex_lab.processes import ProcessRecord

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("control") / "plane", fake_nodes=1) as started:
        yield started


def test_pods_become_ready_on_pretended_nodes(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "deployment", "idle", "--image=anything", "--replicas=3")
    cluster.kubectl("rollout", "status", "deployment/idle", "--timeout=120s")
    pods = json.loads(cluster.kubectl("get", "pods", "-l", "app=idle", "-o", "json").stdout)["items"]
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    assert len({pod["status"]["podIP"] for pod in pods}) == 3


def test_a_restarted_api_server_keeps_its_objects(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    before = ProcessRecord(cluster.folder / "processes.json").read()["kube-apiserver"]
    cluster.restart("kube-apiserver")
    after = ProcessRecord(cluster.folder / "processes.json").read()["kube-apiserver"]
    assert not before.alive()
    assert after.alive()
    assert json.loads(cluster.kubectl("get", "configmap", "kept", "-o", "json").stdout)["data"] == {"a": "b"}


def test_a_failing_client_says_what_kubectl_said(cluster: ControlPlane) -> None:
    with pytest.raises(LabError, match="NotFound"):
        cluster.kubectl("get", "configmap", "missing")
    assert cluster.kubectl("get", "configmap", "missing", check=False).returncode == 1


def test_client_and_server_are_of_one_version(cluster: ControlPlane) -> None:
    versions = json.loads(cluster.kubectl("version", "-o", "json").stdout)
    assert versions["clientVersion"]["gitVersion"] == versions["serverVersion"]["gitVersion"]


def test_starting_again_begins_empty_and_stopping_leaves_no_process(tmp_path: Path) -> None:
    first = ControlPlane(tmp_path / "plane")
    first.start()
    identities = ProcessRecord(tmp_path / "plane" / "processes.json").read()
    first.kubectl("create", "namespace", "earlier")
    second = ControlPlane(tmp_path / "plane")
    with second:
        assert not any(identity.alive() for identity in identities.values())
        assert second.kubectl("get", "namespace", "earlier", check=False).returncode == 1
        identities = ProcessRecord(tmp_path / "plane" / "processes.json").read()
        assert all(identity.alive() for identity in identities.values())
    assert not any(identity.alive() for identity in identities.values())
