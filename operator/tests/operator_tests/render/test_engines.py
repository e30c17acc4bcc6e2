"""Engine pods: devices, environment, arguments, placement, and what a podTemplate changes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from duplex_connector.contract import Label
from duplex_connector.leaving import NOTICE_SECONDS
from duplex_connector.preflight import WARN_ONLY, Machine, Ran, main
from duplex_operator.render import CHILD_KINDS, RenderContext, render_serving, revision_of
from operator_tests.api.cel_cases import CPU, NEURON
from operator_tests.api.objects import serving

CONTEXT = RenderContext(router_image="router:1", connector_image="connector:1", operator_version="0.1.0")


def deployment(role: str = "decode", **change: Any) -> dict[str, Any]:
    return next(
        child
        for child in render_serving(serving(**change), CONTEXT)
        if child["kind"] == "Deployment" and child["metadata"]["labels"][Label.COMPONENT] == role
    )


def pod(role: str = "decode", **change: Any) -> dict[str, Any]:
    result: dict[str, Any] = deployment(role, **change)["spec"]["template"]["spec"]
    return result


def engine(role: str = "decode", **change: Any) -> dict[str, Any]:
    result: dict[str, Any] = next(c for c in pod(role, **change)["containers"] if c["name"] == "engine")
    return result


def env(role: str = "decode", **change: Any) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in engine(role, **change)["env"]}


def option(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_a_quarter_of_p5en_gets_its_share_of_everything() -> None:
    resources = engine(decode={"tensorParallelSize": 2})["resources"]
    devices = {"nvidia.com/gpu": 2, "vpc.amazonaws.com/efa": 4}
    assert resources == {"requests": {"cpu": 24, "memory": "256Gi"} | devices, "limits": devices}


def test_resources_of_the_role_win() -> None:
    given = {"requests": {"cpu": 64, "memory": "400Gi"}, "limits": {"memory": "1000Gi"}}
    resources = engine(decode={"resources": given})["resources"]
    assert (resources["requests"]["cpu"], resources["requests"]["nvidia.com/gpu"]) == (64, 8)
    assert resources["limits"] == {"memory": "1000Gi", "nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 16}


def test_cpu_pods_ask_for_no_device_and_stand_anywhere() -> None:
    assert engine(**CPU)["resources"] == {}
    assert "nodeSelector" not in pod(**CPU)
    assert "tolerations" not in pod(**CPU)


def test_efa_pods_pin_memory_without_privilege() -> None:
    assert engine()["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "runAsUser": 0,
        "capabilities": {"add": ["IPC_LOCK"]},
    }
    assert "runAsUser" not in engine(**CPU)["securityContext"]


def test_efa_pods_cannot_fall_back_to_tcp_in_silence() -> None:
    assert env()["FI_PROVIDER"] == "efa"
    assert env()["FI_EFA_ENABLE_SHM_TRANSFER"] == "0"
    assert "FI_PROVIDER" not in env(**CPU)
    assert env(**CPU)["UCX_TCP_USER_TIMEOUT"] == "5s"


def test_slow_transport_on_efa_types_takes_no_efa_device() -> None:
    slow = {"kvTransfer": {"backend": "UCX", "allowSlowTransport": True}}
    assert "vpc.amazonaws.com/efa" not in engine(**slow)["resources"]["limits"]
    assert env(**slow)["UCX_TCP_USER_TIMEOUT"] == "5s"


NO_REUSE = {"kvTransfer": {"bidirectional": {"enabled": False}}}


def test_each_data_parallel_rank_has_a_side_channel_of_its_own() -> None:
    shape = {"tensorParallelSize": 2, "dataParallelSize": 4}
    container = engine(decode={**shape, "args": ["--enable-expert-parallel"]}, **NO_REUSE)
    arguments = container["args"]
    assert option(arguments, "--tensor-parallel-size") == "2"
    assert option(arguments, "--data-parallel-size") == "4"
    assert "--enable-expert-parallel" in arguments
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 16}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    names = ["side-channel", "side-channel-1", "side-channel-2", "side-channel-3"]
    assert ports == {"api": 8000} | dict(zip(names, range(5600, 5604), strict=True))
    assert env(decode=shape, **NO_REUSE)["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600", "vLLM adds the rank's number"
    assert "--data-parallel-size" not in engine()["args"]


def test_devices_are_divided_among_ranks_where_no_size_is_given() -> None:
    arguments = engine(decode={"dataParallelSize": 2}, **NO_REUSE)["args"]
    assert option(arguments, "--tensor-parallel-size") == "4"


def test_the_side_channel_is_the_pods_own_address() -> None:
    own = {"fieldRef": {"fieldPath": "status.podIP"}}
    assert env()["VLLM_NIXL_SIDE_CHANNEL_HOST"] == own
    assert env()["VLLM_HOST_IP"] == own
    assert env()["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"


def test_env_of_the_role_wins_over_that_of_the_engine_and_the_operator() -> None:
    given = env(
        engine={"env": [{"name": "FI_LOG_LEVEL", "value": "info"}, {"name": "A", "value": "1"}]},
        decode={"env": [{"name": "A", "value": "2"}]},
    )
    assert (given["FI_LOG_LEVEL"], given["A"]) == ("info", "2")


def test_arguments_stand_in_order_and_the_roles_come_last() -> None:
    arguments = engine(engine={"args": ["--max-num-seqs", "8"]}, decode={"args": ["--enforce-eager"]})["args"]
    assert arguments[0] == "Qwen/Qwen3-32B"
    assert arguments[-3:] == ["--max-num-seqs", "8", "--enforce-eager"]
    assert option(arguments, "--tensor-parallel-size") == "8"
    assert option(arguments, "--block-size") == "16"
    assert "command" not in engine()


def test_optional_arguments_follow_the_spec() -> None:
    arguments = engine(
        model={"revision": "main", "maxLength": 4096, "servedName": "q"},
        engine={"dtype": "bfloat16", "kvCacheDtype": "fp8", "wholeWindows": True},
    )["args"]
    assert option(arguments, "--revision") == "main"
    assert option(arguments, "--max-model-len") == "4096"
    assert option(arguments, "--served-model-name") == "q"
    assert option(arguments, "--dtype") == "bfloat16"
    assert option(arguments, "--kv-cache-dtype") == "fp8"
    assert "--disable-hybrid-kv-cache-manager" in arguments
    assert {"--revision", "--dtype", "--disable-hybrid-kv-cache-manager"}.isdisjoint(engine()["args"])


def test_the_grace_period_leaves_room_for_the_hook_that_waits_and_for_the_end() -> None:
    rendered = pod(decode={"drainSeconds": 300})
    container = rendered["containers"][0]
    shell, flag, command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, flag) == ("sh", "-c")
    assert command == "PYTHONPATH=/duplex python3 -m duplex_connector.leaving 300 || sleep 5"
    shutdown = int(option(container["args"], "--shutdown-timeout"))
    assert rendered["terminationGracePeriodSeconds"] > NOTICE_SECONDS + 300 + shutdown
    assert "/duplex" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_hook_runs_by_a_shell_and_gives_routers_time_where_it_cannot(tmp_path: Path) -> None:
    """By the real shell, with programs that say that they were called."""
    command = engine(**CPU)["lifecycle"]["preStop"]["exec"]["command"]
    for name, status in (("python3", 1), ("sleep", 0)):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {name} $PYTHONPATH $* >> {tmp_path}/called\nexit {status}\n")
        program.chmod(0o755)
    subprocess.run([f"/bin/{command[0]}", *command[1:]], env={"PATH": str(tmp_path)}, check=True)
    called = (tmp_path / "called").read_text().splitlines()
    assert called == ["python3 /duplex -m duplex_connector.leaving 120", "sleep 5"]


def test_the_guarded_connector_comes_by_an_init_container() -> None:
    rendered = pod()
    container = rendered["initContainers"][0]
    assert (container["image"], container["command"]) == ("connector:1", ["duplex-connector-install", "/duplex"])
    volume = container["volumeMounts"][0]["name"]
    assert {mount["mountPath"]: mount["name"] for mount in engine()["volumeMounts"]}["/duplex"] == volume
    assert volume in {item["name"] for item in rendered["volumes"]}
    assert env()["PYTHONPATH"] == "/duplex"


def test_devices_are_looked_at_before_the_engine_with_all_that_the_engine_has() -> None:
    rendered, own = pod(), engine()
    preflight = rendered["initContainers"][1]
    assert preflight["command"] == ["python3", "-m", "duplex_connector.preflight"]
    assert (option(preflight["args"], "--devices"), option(preflight["args"], "--efa")) == ("8", "16")
    assert option(preflight["args"], "--version") == "0.33.0"
    for same in ("image", "resources", "securityContext"):
        assert preflight[same] == own[same]
    assert {"name": "PYTHONPATH", "value": "/duplex"} in preflight["env"]
    assert "/duplex" in {mount["mountPath"] for mount in preflight["volumeMounts"]}


def test_its_arguments_are_those_that_the_program_takes(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {WARN_ONLY: "warn"}, lambda *_: Ran(0, ""), lambda _: "")
    assert main(pod()["initContainers"][1]["args"], machine) == 0
    assert main(pod(**NEURON)["initContainers"][1]["args"], machine) == 0


def test_stock_engines_get_the_package_for_its_other_programs_and_not_on_their_path() -> None:
    stock = {"engine": {"connector": "Stock"}}
    assert [container["name"] for container in pod(**stock)["initContainers"]] == ["connector", "preflight"]
    assert [container["name"] for container in pod(**CPU, **stock)["initContainers"]] == ["connector"]
    assert "PYTHONPATH" not in env(**stock)
    assert "kv_connector_module_path" not in json.loads(option(engine(**stock)["args"], "--kv-transfer-config"))


def test_neuron_pods() -> None:
    reuse = {"kvTransfer": {"bidirectional": {"enabled": True}}}
    assert engine(**NEURON)["resources"]["limits"] == {"aws.amazon.com/neuron": 16, "vpc.amazonaws.com/efa": 16}
    assert env("prefill", **NEURON)["VLLM_NEURON_SKIP_DECODE_WARMUP"] == "1"
    assert env("decode", **NEURON)["VLLM_NEURON_SKIP_PREFILL_WARMUP"] == "1"
    assert "VLLM_NEURON_BIDIRECTIONAL_KV" not in env(**NEURON)
    assert env(**NEURON, **reuse)["VLLM_NEURON_BIDIRECTIONAL_KV"] == "1"
    assert "aws.amazon.com/neuron" in {toleration["key"] for toleration in pod(**NEURON)["tolerations"]}


@pytest.mark.parametrize(
    ("source", "volume"),
    [
        ({"pvc": {"claimName": "w"}}, {"persistentVolumeClaim": {"claimName": "w", "readOnly": True}}),
        ({"hostPath": {"path": "/data/m"}}, {"hostPath": {"path": "/data/m", "type": "Directory"}}),
    ],
)
def test_weights_on_a_volume_are_mounted_read_only(source: dict[str, Any], volume: dict[str, Any]) -> None:
    rendered = pod(model={"source": source})
    assert {"name": "model", **volume} in rendered["volumes"]
    assert {"name": "model", "mountPath": "/models", "readOnly": True} in rendered["containers"][0]["volumeMounts"]
    assert rendered["containers"][0]["args"][0] == "/models"


def test_weights_in_s3_are_streamed_with_the_roles_account() -> None:
    source = {"s3": {"uri": "s3://bucket/m", "serviceAccountName": "reader"}}
    rendered = pod(model={"source": source})
    assert rendered["serviceAccountName"] == "reader"
    assert option(rendered["containers"][0]["args"], "--load-format") == "runai_streamer"


def test_the_hub_token_comes_from_its_secret() -> None:
    given = env(model={"source": {"hub": {"tokenSecretRef": {"name": "hub", "key": "t"}}}})
    assert given["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "t"}}


def test_engines_over_efa_must_share_a_zone_and_others_prefer_it() -> None:
    required = pod()["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["topologyKey"] for term in required] == ["topology.kubernetes.io/zone"]
    # The term matches the pods themselves, or the first of them could never be placed.
    labels = deployment()["spec"]["template"]["metadata"]["labels"]
    selector = required[0]["labelSelector"]
    assert selector["matchLabels"].items() <= labels.items()
    assert labels[Label.ROLE] in selector["matchExpressions"][0]["values"]
    assert list(pod(**CPU)["affinity"]["podAffinity"]) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert "podAffinity" not in pod(**CPU, placement={"sameZone": False})["affinity"]


def test_engines_stay_within_what_placement_names() -> None:
    near = "topology.k8s.aws/network-node-layer-3"
    placement = {"topologyKey": near, "capacityReservation": "cr-1", "placementGroup": "pg-1"}
    found = pod(placement=placement)
    required = found["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["topologyKey"] for term in required] == ["topology.kubernetes.io/zone", near]
    assert required[1]["labelSelector"] == required[0]["labelSelector"]
    assert found["nodeSelector"] == {
        "node.kubernetes.io/instance-type": "p5en.48xlarge",
        "karpenter.k8s.aws/capacity-reservation-id": "cr-1",
        "karpenter.k8s.aws/placement-group-id": "pg-1",
    }
    on_cpu = pod(**CPU, placement={"topologyKey": near})["affinity"]["podAffinity"]
    (term,) = on_cpu["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == near
    assert list(on_cpu) == [
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    ]


def test_a_pod_template_is_merged_by_name() -> None:
    overlay = {
        "metadata": {"annotations": {"team": "a"}},
        "spec": {
            "runtimeClassName": "nvidia",
            "tolerations": [{"key": "reserved", "operator": "Exists"}],
            "containers": [
                {"name": "engine", "env": [{"name": "A", "value": "1"}], "securityContext": {"privileged": True}},
                {"name": "sidecar", "image": "log:1"},
            ],
            "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}],
        },
    }
    template = deployment(decode={"podTemplate": overlay})["spec"]["template"]
    merged = template["spec"]
    assert template["metadata"]["annotations"] == {"karpenter.sh/do-not-disrupt": "true", "team": "a"}
    assert merged["runtimeClassName"] == "nvidia"
    assert [container["name"] for container in merged["containers"]] == ["engine", "sidecar"]
    assert merged["containers"][0]["securityContext"]["privileged"] is True
    assert merged["containers"][0]["securityContext"]["runAsUser"] == 0
    assert {"name": "A", "value": "1"} in merged["containers"][0]["env"]
    assert merged["containers"][0]["args"] == engine()["args"]
    assert len(merged["tolerations"]) == len(pod()["tolerations"]) + 1
    assert merged["volumes"][0]["emptyDir"]["sizeLimit"] == "8Gi"
    assert len(merged["volumes"]) == len(pod()["volumes"])


def test_suspend_scales_everything_to_nothing() -> None:
    deployments = [c for c in render_serving(serving(suspend=True), CONTEXT) if c["kind"] == "Deployment"]
    assert [child["spec"]["replicas"] for child in deployments] == [0, 0, 0]


def test_every_child_is_owned_labelled_and_of_a_known_kind() -> None:
    given = serving(podDisruptionBudget={"enabled": True})
    known = {(kind.api_version, kind.kind) for kind in CHILD_KINDS}
    children = render_serving(given, CONTEXT)
    for child in children:
        assert (child["apiVersion"], child["kind"]) in known
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["name"], owner["controller"], owner["blockOwnerDeletion"]) == ("chat", True, True)
        assert child["metadata"]["namespace"] == "llm"
        assert child["metadata"]["labels"][Label.SERVING] == "chat"
    names = [(child["kind"], child["metadata"]["name"]) for child in children]
    assert len(names) == len(set(names))
    assert len([kind for kind, _ in names if kind == "PodDisruptionBudget"]) == 2
    assert "PodDisruptionBudget" not in {child["kind"] for child in render_serving(serving(), CONTEXT)}


def test_selectors_match_the_pods_and_no_others() -> None:
    children = render_serving(serving(), CONTEXT)
    pods = [c["spec"]["template"]["metadata"]["labels"] for c in children if c["kind"] == "Deployment"]
    selectors = [c["spec"]["selector"] for c in children if c["kind"] == "Service"]
    selectors += [c["spec"]["selector"]["matchLabels"] for c in children if c["kind"] == "Deployment"]
    assert len(selectors) == 6
    for selector in selectors:
        assert len([labels for labels in pods if selector.items() <= labels.items()]) == 1


def test_the_operators_version_never_reaches_a_pod() -> None:
    newer = RenderContext(router_image="router:1", connector_image="connector:1", operator_version="0.2.0")
    for old, new in zip(render_serving(serving(), CONTEXT), render_serving(serving(), newer), strict=True):
        assert old["metadata"] != new["metadata"]
        assert old.get("spec") == new.get("spec")


def test_both_roles_of_a_revision_bear_its_name() -> None:
    revision = revision_of(serving().spec)
    names = {child["metadata"]["name"] for child in render_serving(serving(), CONTEXT) if child["kind"] == "Deployment"}
    assert names == {f"chat-prefill-{revision}", f"chat-decode-{revision}", "chat-router"}
