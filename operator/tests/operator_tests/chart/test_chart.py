"""The chart, rendered by the real Helm and installed in a real control plane, with the rights that it gives."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from duplex_kube.client import Client
from duplex_lab.control_plane import ControlPlane
from duplex_lab.errors import LabError
from operator_tests.reconcile.harness import World, a_serving, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]

CHART = Path(__file__).resolve().parents[4] / "charts/duplex-operator"
RELEASE = "duplex"
SYSTEM = "duplex-system"


def rendered(control_plane: ControlPlane, *settings: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Render; by kind, namespace and name."""
    flags = [part for setting in settings for part in ("--set", setting)]
    text = control_plane.helm("template", RELEASE, str(CHART), "--namespace", SYSTEM, *flags).stdout
    objects = [obj for obj in yaml.safe_load_all(text) if obj]
    return {(obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj for obj in objects}


def test_the_chart_is_of_the_packages_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == version("duplex-serving")


@pytest.mark.parametrize(
    "setting", ["nonsense=1", "image.nonsense=1", "replicas=many", "logLevel=loud", "image.digest=x"]
)
def test_unknown_and_wrong_values_are_refused(control_plane: ControlPlane, setting: str) -> None:
    with pytest.raises(LabError):
        rendered(control_plane, setting)


def test_rights_shrink_with_the_watched_namespaces(control_plane: ControlPlane) -> None:
    whole = rendered(control_plane, "rbac.aggregate=false")
    assert ("ClusterRole", "", "duplex-operator") in whole
    some = rendered(control_plane, "rbac.aggregate=false", "watchNamespaces={a,b}")
    assert not [key for key in some if key[0].startswith("Cluster")]
    for namespace in ("a", "b"):
        assert (
            some["Role", namespace, "duplex-operator"]["rules"] == whole["ClusterRole", "", "duplex-operator"]["rules"]
        )
        bound = some["RoleBinding", namespace, "duplex-operator"]
        assert bound["subjects"] == [{"kind": "ServiceAccount", "name": "duplex-operator", "namespace": SYSTEM}]
    args = some["Deployment", SYSTEM, "duplex-operator"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [arg for arg in args if arg.startswith("--namespace=")] == ["--namespace=a", "--namespace=b"]


def test_crds_can_be_left_out_and_are_kept(control_plane: ControlPlane) -> None:
    key = ("CustomResourceDefinition", "", "disaggregatedservings.duplex.dev")
    assert key not in rendered(control_plane, "crds.enabled=false")
    annotations = rendered(control_plane)[key]["metadata"]["annotations"]
    assert annotations == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in rendered(control_plane, "crds.keep=false")[key]["metadata"]


def test_one_replica_has_no_disruption_budget_that_would_block_its_node(control_plane: ControlPlane) -> None:
    key = ("PodDisruptionBudget", SYSTEM, "duplex-operator")
    assert key in rendered(control_plane)
    assert key not in rendered(control_plane, "replicas=1")


def test_the_operators_pod_is_restricted(control_plane: ControlPlane) -> None:
    """The namespace enforces the restricted pod security standard: what it lets in, it calls restricted."""
    control_plane.kubectl("create", "namespace", "restricted")
    control_plane.kubectl("label", "namespace", "restricted", "pod-security.kubernetes.io/enforce=restricted")
    template = rendered(control_plane)["Deployment", SYSTEM, "duplex-operator"]["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "restricted"},
        "spec": template["spec"],
    }
    pod["spec"].pop("serviceAccountName")
    control_plane.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))


@pytest.fixture
def installed(control_plane: ControlPlane) -> Iterator[None]:
    """Install the chart, its CRDs included, and uninstall it after the test."""
    control_plane.helm(
        "install", RELEASE, str(CHART), "--namespace", SYSTEM, "--create-namespace", "--take-ownership",
        "--wait", "--timeout=60s",
    )  # fmt: skip
    yield
    control_plane.helm("uninstall", RELEASE, "--namespace", SYSTEM)


def account_kubeconfig(control_plane: ControlPlane, folder: Path) -> Path:
    """Write a kubeconfig of the operator's own account."""
    token = control_plane.kubectl("create", "token", "duplex-operator", "--namespace", SYSTEM).stdout.strip()
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = folder / "account.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.usefixtures("installed")
async def test_the_rights_of_the_chart_are_enough_for_a_whole_life(
    kube_api: Client, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """The operator as a process with its account's rights: create, edit, roll, prune, sick, delete."""
    world = World(kube_api, account_kubeconfig(control_plane, tmp_path), namespace)
    async with world.operator(lease_namespace=SYSTEM, lease_name="duplex-operator", namespaces=()):
        await world.put(a_serving("chat", namespace, podDisruptionBudget={"enabled": True}))
        await world.rolled_out("chat")
        await world.put(a_serving("chat", namespace, engine={"image": "duplex.local/simulator:2", "version": "0.33.0"}))
        await world.rolled_out("chat")
        events = control_plane.kubectl("get", "events", "--namespace", namespace, "-o", "json").stdout
        reasons = {item["reason"] for item in json.loads(events)["items"]}
        assert {"Serving", "RolledOut"} <= reasons
        table = control_plane.kubectl("get", "dsv", "--namespace", namespace).stdout.splitlines()
        assert table[0].split() == [
            "MODEL",
            "PREFILL",
            "DECODE",
            "ROUTER",
            "TRANSPORT",
            "REUSE",
            "HELD",
            "READY",
            "AGE",
        ] or (
            table[0].split()[1:]
            == ["MODEL", "PREFILL", "DECODE", "ROUTER", "TRANSPORT", "REUSE", "HELD", "READY", "AGE"]
        )
        assert table[1].split()[1:6] == ["tiny", "1/1", "1/1", "1/1", "tcp"]


@pytest.mark.usefixtures("installed")
def test_uninstalling_leaves_servings(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl("apply", "-f", "-", input=json.dumps(a_serving("chat", namespace)))
    control_plane.helm("uninstall", RELEASE, "--namespace", SYSTEM)
    assert "chat" in control_plane.kubectl("get", "dsv", "--namespace", namespace).stdout
    control_plane.helm("install", RELEASE, str(CHART), "--namespace", SYSTEM, "--take-ownership")


@pytest.mark.usefixtures("installed")
async def test_the_program_itself_runs_answers_its_probes_and_ends_in_order(
    kube_api: Client, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    world = World(kube_api, control_plane.kubeconfig, namespace)
    config = account_kubeconfig(control_plane, tmp_path)
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(  # noqa: ASYNC220 - started at once, and then only waited for
        [
            sys.executable, "-m", "duplex_operator", "run", f"--kubeconfig={config}",
            "--router-image=duplex.local/router:dev", "--connector-image=duplex.local/connector:dev",
            f"--lease-namespace={SYSTEM}", "--lease-name=duplex-operator", "--health-port=0",
        ],
        stderr=log,
    )  # fmt: skip
    try:
        await world.put(a_serving("chat", namespace))

        async def told() -> bool:
            return await world.condition("chat", "RouterReady") == ("True", "PodsReady")

        await eventually(told, seconds=60)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0
    finally:
        process.kill()
        process.wait()
        log.seek(0)
        sys.stderr.write(log.read())
        log.close()
    lease = control_plane.kubectl("get", "lease", "duplex-operator", "--namespace", SYSTEM, "-o", "json").stdout
    assert json.loads(lease)["spec"].get("holderIdentity", "") == ""
