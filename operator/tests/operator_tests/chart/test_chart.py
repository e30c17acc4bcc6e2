"""The chart, rendered by the real Helm and installed in a real control plane, with the rights that it gives."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from duplex_kube.api import PODS, Selection
from duplex_kube.client import Client
from duplex_lab.audit import Request, requests
from duplex_lab.control_plane import ControlPlane
from duplex_lab.errors import LabError
from duplex_operator.api import DisaggregatedServing
from duplex_operator.render import RenderContext, render_router
from operator_tests.reconcile.harness import World, a_serving, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400)]

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


def test_nodes_are_seen_only_where_all_of_the_cluster_is_watched(control_plane: ControlPlane) -> None:
    def watches(*settings: str) -> tuple[bool, bool]:
        objects = rendered(control_plane, "rbac.aggregate=false", *settings)
        container = objects["Deployment", SYSTEM, "duplex-operator"]["spec"]["template"]["spec"]["containers"][0]
        return ("ClusterRole", "", "duplex-operator-nodes") in objects, "--watch-nodes" in container["args"]

    assert watches() == (True, True)
    assert watches("watchNodes=false") == (False, False)
    assert watches("watchNamespaces={a}") == (False, False)


def test_crds_can_be_left_out_and_are_kept(control_plane: ControlPlane) -> None:
    without, whole, unkept = (
        rendered(control_plane, *settings) for settings in (("crds.enabled=false",), (), ("crds.keep=false",))
    )
    for plural in ("disaggregatedservings", "servingroles"):
        key = ("CustomResourceDefinition", "", f"{plural}.duplex.dev")
        assert key not in without
        assert whole[key]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert "annotations" not in unkept[key]["metadata"]


def test_one_replica_has_no_disruption_budget_that_would_block_its_node(control_plane: ControlPlane) -> None:
    key = ("PodDisruptionBudget", SYSTEM, "duplex-operator")
    assert key in rendered(control_plane)
    assert key not in rendered(control_plane, "replicas=1")


@pytest.mark.parametrize("part", ["operator", "router"])
def test_our_pods_fit_a_namespace_that_enforces_the_restricted_level(
    control_plane: ControlPlane, namespace: str, part: str
) -> None:
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    if part == "operator":
        template = rendered(control_plane)["Deployment", SYSTEM, "duplex-operator"]["spec"]["template"]
    else:
        template = router_template()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {key: value for key, value in template["spec"].items() if key != "serviceAccountName"},
    }
    create = ("create", "--dry-run=server", "-f", "-")
    control_plane.kubectl(*create, input=json.dumps(pod))
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    refused = control_plane.kubectl(*create, input=json.dumps(pod), check=False)
    assert refused.returncode != 0, "the namespace enforces nothing"
    assert "restricted" in refused.stderr


def router_template() -> dict[str, Any]:
    """Return the pod template of a router with everything that adds volumes to it."""
    spec = {
        "auth": {"apiKeysSecretRef": "keys"},
        "tls": {"secretRef": "certificate"},
        "sessionStore": {"secretRef": {"name": "store", "key": "url"}},
    }
    of = DisaggregatedServing.model_validate(a_serving("chat", "n", router=spec))
    context = RenderContext(router_image="router:1", connector_image="connector:1", operator_version="0.1.0")
    deployment = next(obj for obj in render_router(of, context) if obj["kind"] == "Deployment")
    template: dict[str, Any] = json.loads(json.dumps(deployment["spec"]["template"]))
    return template


def test_a_network_policy_lets_in_only_who_may_read_metrics(control_plane: ControlPlane) -> None:
    key = ("NetworkPolicy", SYSTEM, "duplex-operator")
    assert key not in rendered(control_plane)
    assert rendered(control_plane, "networkPolicy.enabled=true")[key]["spec"]["ingress"] == []
    peer = "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=metrics"
    (rule,) = rendered(control_plane, "networkPolicy.enabled=true", peer)[key]["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8080}]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"team": "metrics"}}}]


def test_nobody_reads_secrets(control_plane: ControlPlane) -> None:
    """Neither the operator nor what it gives to routers: Secrets reach pods as volumes, by the kubelet."""
    for obj in rendered(control_plane).values():
        for rule in obj.get("rules") or ():
            assert not {"secrets", "*"} & set(rule["resources"]), obj["metadata"]["name"]


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


NO_REQUEST = {
    # Asked of the owner's account by an admission plugin where that is on, not a request of its own.
    ("duplex.dev", "disaggregatedservings/finalizers", "update"),
    # Given on to routers.
    ("discovery.k8s.io", "endpointslices", "get"),
    ("discovery.k8s.io", "endpointslices", "list"),
    ("discovery.k8s.io", "endpointslices", "watch"),
    # Only once kopf has lost its watch.
    ("duplex.dev", "disaggregatedservings", "get"),
}
"""Rights that are there for another reason than a request of the operator."""


def rights(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Return (group, resource, verb) of every right in the rules of a role."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def asked(control_plane: ControlPlane, account: str) -> list[Request]:
    user = f"system:serviceaccount:{SYSTEM}:{account}"
    return [request for request in requests(control_plane.audit_log) if request.user == user]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("mode", ["cluster", "namespaced"])
async def test_the_rights_of_the_chart_are_enough_for_a_whole_life_and_all_are_used(
    kube_api: Client, control_plane: ControlPlane, namespace: str, tmp_path: Path, mode: str
) -> None:
    """The operator as a process with its account's rights: create, edit, roll, prune, sick, delete."""
    if mode == "namespaced":
        control_plane.helm(
            "upgrade", RELEASE, str(CHART), "--namespace", SYSTEM, f"--set=watchNamespaces={{{namespace}}}"
        )
    control_plane.kubectl("delete", "lease", "duplex-operator", "--namespace", SYSTEM, "--ignore-not-found")
    before = len(asked(control_plane, "duplex-operator"))
    world = World(kube_api, account_kubeconfig(control_plane, tmp_path), namespace)
    namespaces = () if mode == "cluster" else (namespace,)
    settings = {"namespaces": namespaces, "watch_nodes": not namespaces}
    async with world.operator(lease_namespace=SYSTEM, lease_name="duplex-operator", **settings):
        extras = {"podDisruptionBudget": {"enabled": True}, "networkPolicy": {"enabled": True}}
        await world.put(a_serving("chat", namespace, **extras))
        await world.rolled_out("chat")
        await world.put(a_serving("chat", namespace, engine={"image": "duplex.local/simulator:2", "version": "0.33.0"}))
        await world.rolled_out("chat")
        pods = (await kube_api.list(PODS, Selection(namespace, "duplex.dev/serving=chat"))).items
        engines = {pod["metadata"]["labels"]["duplex.dev/role"]: pod["metadata"]["name"] for pod in pods}
        pair = {"prefill": engines["prefill"], "decode": engines["decode"], "since": time.time() - 3600}
        world.routers.broken = [pair]

        async def restarted() -> bool:
            now = (await kube_api.list(PODS, Selection(namespace, "duplex.dev/serving=chat"))).items
            gone = pair["prefill"] not in {pod["metadata"]["name"] for pod in now}
            return gone and "healing" in (await world.serving("chat"))["status"]

        await eventually(restarted)
        await world.rolled_out("chat")
        events = control_plane.kubectl("get", "events", "--namespace", namespace, "-o", "json").stdout
        reasons = {item["reason"] for item in json.loads(events)["items"]}
        assert {"Serving", "RolledOut"} <= reasons
        columns = ["MODEL", "PREFILL", "DECODE", "ROUTER", "TRANSPORT", "REUSE", "HELD", "READY", "AGE"]

        async def shown() -> bool:
            # Deployments tell of the new pod a little after it is there.
            table = control_plane.kubectl("get", "dsv", "--namespace", namespace).stdout.splitlines()
            assert table[0].split() == ["NAME", *columns]
            return table[1].split()[1:6] == ["tiny", "1/1", "1/1", "1/1", "tcp"]

        await eventually(shown)
    made = asked(control_plane, "duplex-operator")[before:]
    # Not those about servings of earlier tests, in namespaces that are being deleted.
    assert not [request for request in made if request.forbidden and request.namespace in ("", SYSTEM, namespace)]
    used = {(request.group, request.resource, request.verb) for request in made}
    whole = rendered(control_plane)
    given = rights(whole["ClusterRole", "", "duplex-operator"]["rules"])
    given |= rights(whole["Role", SYSTEM, "duplex-operator-leader-election"]["rules"])
    if not namespaces:
        given |= rights(whole["ClusterRole", "", "duplex-operator-nodes"]["rules"])
    assert used <= given
    # The apply of a new object is one request, a patch, which needs the right to create too.
    unseen = {right for right in given - used if (right[0], right[1], "patch") not in used or right[2] != "create"}
    assert unseen == NO_REQUEST


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
