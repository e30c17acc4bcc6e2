"""Rules that CEL cannot say; each is seen to hold for a good spec and to name the field of a bad one."""

from __future__ import annotations

from typing import Any

import pytest

from duplex_operator.api import Spec, validate
from operator_tests.api.cel_cases import CASES, CPU, NEURON, TRN2
from operator_tests.api.objects import serving

HALF_TRN2 = TRN2 | {"acceleratorsPerPod": 8, "tensorParallelSize": 32}


def template(pod: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"decode": {"podTemplate": {"metadata": metadata, "spec": pod}}}


GOOD: tuple[dict[str, Any], ...] = (
    {},
    CPU,
    NEURON,
    NEURON | {"prefill": HALF_TRN2, "decode": HALF_TRN2},
    template(
        {"containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}, {"name": "sidecar", "image": "x"}]}
    ),
    template(
        {"runtimeClassName": "nvidia", "volumes": [{"name": "cache", "hostPath": {"path": "/mnt"}}]},
        labels={"team": "a"},
    ),
)

BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("prefill.instanceType", {"prefill": {"instanceType": "p99.large"}}),
    ("engine.version", {"engine": {"image": "vllm:nightly", "connector": "Stock"}}),
    ("engine.version", {"engine": {"image": "vllm:v0.99.0", "connector": "Stock"}}),
    ("engine.version", NEURON | {"engine": {"image": "neuron:0.33.0"}}),
    ("engine.connector", {"engine": {"image": "vllm:v0.31.0"}}),
    (
        "kvTransfer.bidirectional.enabled",
        {"engine": {"image": "vllm:v0.25.0", "connector": "Stock"}, "kvTransfer": {"bidirectional": {"enabled": True}}},
    ),
    (
        "kvTransfer.bidirectional.enabled",
        NEURON | {"engine": {"image": "neuron:0.21.0"}, "kvTransfer": {"bidirectional": {"enabled": True}}},
    ),
    ("engine.args", {"engine": {"args": ["-tp", "2"]}}),
    ("prefill.args", {"prefill": {"args": ["--kv-transfer-config={}"]}}),
    ("decode.args", {"decode": {"args": ["--kv_transfer_config.kv_role", "kv_both"]}}),
    ("decode.args", {"decode": {"args": ["--no-enable-prompt-tokens-details"]}}),
    ("decode.args", {"decode": {"args": ["--kv-transfer-conf", "{}"]}}),
    ("decode.args", {"decode": {"args": ["--host=::1"]}}),
    ("decode.env", {"decode": {"env": [{"name": "PYTHONPATH", "value": "/x"}]}}),
    ("prefill.acceleratorsPerPod", {"prefill": {"acceleratorsPerPod": 16}}),
    ("prefill.tensorParallelSize", NEURON | {"prefill": TRN2 | {"acceleratorsPerPod": 8}, "decode": HALF_TRN2}),
    ("prefill.tensorParallelSize", {"prefill": {"acceleratorsPerPod": 8, "tensorParallelSize": 4}}),
    ("decode.tensorParallelSize", {"prefill": {"tensorParallelSize": 3}}),
    ("decode.instanceType", {"decode": {"instanceType": "cpu"}}),
    ("decode.replicas", {"decode": {"replicas": 33}}),
    (
        "scaling.ratio",
        {
            "scaling": {"ratio": {"min": "1:4", "max": "1:1"}},
            "decode": {"replicas": 9, "scaling": {"mode": "External", "minReplicas": 5}},
        },
    ),
    ("decode.podTemplate.status", {"decode": {"podTemplate": {"status": {}}}}),
    ("decode.podTemplate.metadata.name", template({}, name="x")),
    ("decode.podTemplate.metadata.labels[duplex.dev/role]", template({}, labels={"duplex.dev/role": "prefill"})),
    ("decode.podTemplate.spec.hostNetwork", template({"hostNetwork": True})),
    ("decode.podTemplate.spec.resourceClaims", template({"resourceClaims": [{"name": "gpu"}]})),
    ("decode.podTemplate.spec.restartPolicy", template({"restartPolicy": "Always"})),
    ("decode.podTemplate.spec.nodeName", template({"nodeName": "node1"})),
    (
        "decode.podTemplate.spec.containers[engine].command",
        template({"containers": [{"name": "engine", "command": ["sh"]}]}),
    ),
    ("decode.podTemplate.spec.volumes[model]", template({"volumes": [{"name": "model", "emptyDir": {}}]})),
    ("decode.podTemplate.spec.terminationGracePeriodSeconds", template({"terminationGracePeriodSeconds": 1})),
    ("decode.podTemplate.spec.containers[engine].args", template({"containers": [{"name": "engine", "args": []}]})),
    ("decode.podTemplate.spec.containers[engine].image", template({"containers": [{"name": "engine", "image": "x"}]})),
    ("decode.podTemplate.spec.containers[engine].ports", template({"containers": [{"name": "engine", "ports": []}]})),
    (
        "decode.podTemplate.spec.containers[engine].env[VLLM_HOST_IP]",
        template({"containers": [{"name": "engine", "env": [{"name": "VLLM_HOST_IP", "value": "0.0.0.0"}]}]}),
    ),
    (
        "decode.podTemplate.spec.containers[engine].volumeMounts[/duplex]",
        template({"containers": [{"name": "engine", "volumeMounts": [{"name": "x", "mountPath": "/duplex/"}]}]}),
    ),
    ("decode.podTemplate.spec.containers", template({"containers": [{"image": "x"}]})),
    ("decode.podTemplate.spec.initContainers[connector]", template({"initContainers": [{"name": "connector"}]})),
    ("decode.podTemplate.spec.initContainers[preflight]", template({"initContainers": [{"name": "preflight"}]})),
    ("decode.podTemplate.spec.volumes[duplex-connector]", template({"volumes": [{"name": "duplex-connector"}]})),
    (
        "decode.podTemplate.spec.volumes[efa]",
        template({"volumes": [{"name": "efa", "hostPath": {"path": "/dev/infiniband/"}}]}),
    ),
    ("decode.podTemplate.spec.nodeSelector", template({"nodeSelector": None})),
    (
        "decode.podTemplate.spec.containers[0].$patch",
        template({"containers": [{"name": "engine", "$patch": "delete"}]}),
    ),
    ("router.podTemplate.status", {"router": {"podTemplate": {"status": {}}}}),
    ("router.podTemplate.spec.hostNetwork", {"router": {"podTemplate": {"spec": {"hostNetwork": True}}}}),
    ("router.podTemplate.spec.serviceAccountName", {"router": {"podTemplate": {"spec": {"serviceAccountName": "x"}}}}),
    (
        "router.podTemplate.spec.containers[router].command",
        {"router": {"podTemplate": {"spec": {"containers": [{"name": "router", "command": ["sh"]}]}}}},
    ),
)


@pytest.mark.parametrize("change", GOOD)
def test_good_specs_have_no_problem(change: dict[str, Any]) -> None:
    assert validate(serving(**change).spec) == []


@pytest.mark.parametrize(("field", "change"), BAD, ids=[f"{index}-{field}" for index, (field, _) in enumerate(BAD)])
def test_a_bad_spec_names_its_field(field: str, change: dict[str, Any]) -> None:
    problems = validate(serving(**change).spec)
    assert [problem.field for problem in problems] == [field]
    assert all(problem.message for problem in problems)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_what_the_crd_accepts_has_no_problem_here(case: Any) -> None:
    assert validate(serving(**case.accepted).spec) == []


def test_reading_ignores_fields_of_a_newer_release() -> None:
    spec = serving(router={"newField": 1}, newPart={"x": 1}).spec
    assert spec == serving().spec


def test_specs_cannot_be_changed_after_reading() -> None:
    spec: Spec = serving().spec
    with pytest.raises(ValueError, match="frozen"):
        spec.suspend = True
