"""Settings of nodes and foreign clusters, and what is refused with a word on what to do."""

import json
from pathlib import Path

import pytest

from duplex_lab import node_settings
from duplex_lab.cli import main
from duplex_lab.cluster import open_cluster
from duplex_lab.errors import LabError
from duplex_lab.foreign_cluster import kind_settings, service_of
from duplex_lab.plan import NodePlan


def test_host_mounts_are_read_only_and_added_to_the_default() -> None:
    default = {"mounts": [{"destination": "/proc"}], "process": {}}
    spec = node_settings.host_runtime(default, {"/usr": "/usr", "/var/lib/duplex/engine": "/opt/duplex/engine"})
    assert [mount["destination"] for mount in spec["mounts"]] == ["/proc", "/usr", "/opt/duplex/engine"]
    assert all("ro" in mount["options"] for mount in spec["mounts"][1:])
    assert default == {"mounts": [{"destination": "/proc"}], "process": {}}


def test_pods_of_two_nodes_get_addresses_of_their_own() -> None:
    first, second = (node_settings.container_network(NodePlan("a", index).pod_range) for index in (1, 2))
    assert first["plugins"][0]["ipam"]["ranges"] != second["plugins"][0]["ipam"]["ranges"]


def test_kubelet_keeps_its_pods_in_the_nodes_own_cgroup() -> None:
    settings = node_settings.kubelet(NodePlan("demo", 3), Path("/ca"), "10.200.0.2", Path("/resolv"))
    assert settings["cgroupRoot"] == "/duplex-demo-node3"
    json.dumps(settings)


def test_kind_gets_one_control_plane_and_the_rest_workers() -> None:
    assert [node["role"] for node in kind_settings(3)["nodes"]] == ["control-plane", "worker", "worker"]


@pytest.mark.parametrize(
    ("target", "parts"),
    [("router.demo:80", ("router", "demo", "80")), ("a-b.c-d.svc.cluster.local:8000", ("a-b", "c-d", "8000"))],
)
def test_services_are_read_from_their_names(target: str, parts: tuple[str, str, str]) -> None:
    assert service_of(target) == parts


@pytest.mark.parametrize("target", ["router:80", "router.demo", "10.0.0.1:80x", ""])
def test_other_names_are_refused(target: str) -> None:
    with pytest.raises(LabError, match="SERVICE"):
        service_of(target)


def test_an_unknown_kind_is_answered_with_those_there_are() -> None:
    with pytest.raises(LabError, match="local, kind, current"):
        open_cluster("a", "minikube")


def test_images_of_the_current_cluster_need_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = open_cluster("a", "current")
    monkeypatch.delenv("DUPLEX_REGISTRY", raising=False)
    with pytest.raises(LabError, match="DUPLEX_REGISTRY"):
        cluster.image_reference("router")
    monkeypatch.setenv("DUPLEX_REGISTRY", "registry.example/duplex/")
    assert cluster.image_reference("router") == "registry.example/duplex/router:dev"


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DUPLEX_CACHE", str(tmp_path))
    monkeypatch.delenv("CLUSTER", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kubectl", "get", "pods"], "not up"),
        (["kubectl", "--name", "other", "get", "pods"], "lab other is not up"),
        (["helm", "--name=other", "list"], "lab other is not up"),
        (["exec", "node1", "--", "true"], "not up"),
        (["exec", "node1"], "give a program"),
        (["fault", "cut"], "needs a target"),
        (["fault", "heal"], "not up"),
        (["logs", "kubelet"], "the lab is not up"),
        (["status", "--name", "../other"], "lab name"),
        (["images", "build", "nonsense"], "no image"),
        (["up", "--name", "a", "--", "true"], "takes no words"),
    ],
)
def test_the_command_says_what_is_wrong(
    empty_cache: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    del empty_cache
    assert main(words) == 1
    assert said in capsys.readouterr().err


def test_status_of_nothing_is_no_error_but_not_success(empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del empty_cache
    assert main(["status"]) == 1
    assert json.loads(capsys.readouterr().out) == {"name": "duplex", "up": False, "components": [], "nodes": {}}


def test_other_clusters_have_no_faults(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del empty_cache
    monkeypatch.setenv("CLUSTER", "kind")
    assert main(["fault", "heal"]) == 1
