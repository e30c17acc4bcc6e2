"""For each CEL rule of the CRD: a change that it accepts and one that it refuses, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CPU = {"prefill": {"instanceType": "cpu"}, "decode": {"instanceType": "cpu"}}
TRN2 = {"instanceType": "trn2.48xlarge", "tensorParallelSize": 64}
NEURON = {"engine": {"image": "neuron:0.24.0"}, "prefill": TRN2, "decode": TRN2}


@dataclass(frozen=True)
class Case:
    """`rule` is how the rule's message begins; the changes are to the spec of the smallest good serving."""

    rule: str
    accepted: dict[str, Any]
    refused: dict[str, Any]
    name: str = "chat"
    refused_name: str = "chat"


CASES = (
    Case("metadata.name: must begin", {}, {}, name="a" * 44, refused_name="a" * 45),
    Case(
        "source: name exactly one",
        {"model": {"source": {"pvc": {"claimName": "weights", "path": "qwen3"}}}},
        {"model": {"source": {"pvc": {"claimName": "weights"}, "hostPath": {"path": "/weights"}}}},
    ),
    Case(
        "version: the image's tag is not a plain version",
        {"engine": {"image": "example.org/vllm:nightly", "version": "0.33.0"}},
        {"engine": {"image": "example.org/vllm:nightly", "connector": "Stock"}},
    ),
    Case(
        "args: the operator writes these flags",
        {"engine": {"args": ["--max-num-seqs", "4", "--port-like=1"]}},
        {"engine": {"args": ["--kv_transfer_config.kv_role=kv_both"]}},
    ),
    Case(
        "args: the operator writes these flags",
        {"decode": {"args": ["--enforce-eager", "auto", "4"]}},
        {"decode": {"args": ["--kv-transfer-conf", "{}"]}},
    ),
    Case(
        "args: prefill context parallelism",
        {"prefill": {"args": ["--decode-context-parallel-size", "1"]}},
        {"prefill": {"args": ["--prefill-context-parallel-size=2"]}},
    ),
    Case(
        "env: the operator writes these variables",
        {"decode": {"env": [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}]}},
        {"decode": {"env": [{"name": "FI_PROVIDER", "value": "tcp"}]}},
    ),
    Case(
        "env: give value or valueFrom",
        {"engine": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]}},
        {"engine": {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}},
    ),
    Case(
        "valueFrom: name exactly one",
        {"engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}},
        {"engine": {"env": [{"name": "A", "valueFrom": {}}]}},
    ),
    Case(
        "instanceType: not known",
        {"prefill": {"instanceType": "ml.p5en.48xlarge"}},
        {"prefill": {"instanceType": "p99.large"}},
    ),
    Case(
        "tensorParallelSize: required on Neuron",
        NEURON,
        NEURON | {"decode": {"instanceType": "trn2.48xlarge"}},
    ),
    Case(
        "acceleratorsPerPod: a role on cpu",
        CPU,
        CPU | {"decode": {"instanceType": "cpu", "acceleratorsPerPod": 1}},
    ),
    Case(
        "tensorParallelSize: times dataParallelSize",
        {"prefill": {"acceleratorsPerPod": 4, "tensorParallelSize": 4}},
        {"prefill": {"acceleratorsPerPod": 8, "tensorParallelSize": 4}},
    ),
    Case(
        "dataParallelSize: above 1 only with",
        {"decode": {"dataParallelSize": 2}, "kvTransfer": {"bidirectional": {"enabled": False}}},
        {"decode": {"dataParallelSize": 2}},
    ),
    Case(
        "dataParallelSize: has not been run on Neuron",
        NEURON,
        {**NEURON, "decode": {**TRN2, "dataParallelSize": 2}, "kvTransfer": {"bidirectional": {"enabled": False}}},
    ),
    Case("nodes: only 1", {"prefill": {"nodes": 1}}, {"prefill": {"nodes": 2}}),
    Case(
        "replicas: tensorParallelSize x dataParallelSize x replicas",
        {"decode": {"tensorParallelSize": 8, "replicas": 32}},
        {"decode": {"tensorParallelSize": 8, "replicas": 33}},
    ),
    Case(
        "scaling: minReplicas and maxReplicas bound",
        {"decode": {"scaling": {"mode": "External", "minReplicas": 2, "maxReplicas": 8}}},
        {"decode": {"scaling": {"mode": "Fixed", "maxReplicas": 8}}},
    ),
    Case(
        "scaling: minReplicas must not be above",
        {"decode": {"scaling": {"mode": "External", "minReplicas": 8, "maxReplicas": 8}}},
        {"decode": {"scaling": {"mode": "External", "minReplicas": 9, "maxReplicas": 8}}},
    ),
    Case(
        "scaling.maxReplicas: tensorParallelSize",
        {"decode": {"tensorParallelSize": 8, "scaling": {"mode": "External", "maxReplicas": 32}}},
        {"decode": {"tensorParallelSize": 8, "scaling": {"mode": "External", "maxReplicas": 33}}},
    ),
    Case(
        "scaling.ratio: min must not",
        {"scaling": {"ratio": {"min": "2:8", "max": "1:4"}}, "decode": {"replicas": 4}},
        {"scaling": {"ratio": {"min": "2:7", "max": "1:4"}}, "decode": {"replicas": 4}},
    ),
    Case(
        "scaling.ratio: prefill.replicas to decode.replicas",
        {"scaling": {"ratio": {"min": "1:4", "max": "1:1"}}, "prefill": {"replicas": 2}, "decode": {"replicas": 8}},
        {"scaling": {"ratio": {"min": "1:4", "max": "1:1"}}, "prefill": {"replicas": 2}, "decode": {"replicas": 9}},
    ),
    Case(
        "scaling.ratio: prefill.replicas to decode.replicas",
        {
            "scaling": {"ratio": {"min": "1:4", "max": "1:1"}},
            "decode": {"replicas": 9, "scaling": {"mode": "External"}},
        },
        {"scaling": {"ratio": {"min": "1:4", "max": "1:1"}}, "prefill": {"replicas": 2}, "decode": {"replicas": 1}},
    ),
    Case(
        "rollout: maxSurge and maxUnavailable",
        {"rollout": {"maxSurge": 0, "maxUnavailable": 2, "paused": True}},
        {"rollout": {"maxSurge": 0, "maxUnavailable": 0}},
    ),
    Case(
        "placement.sameZone: must stay true",
        CPU | {"placement": {"sameZone": False}},
        {"placement": {"sameZone": False}},
    ),
    Case(
        "replicas: each replica knows", {"router": {"replicas": 2, "affinity": "Header"}}, {"router": {"replicas": 2}}
    ),
    Case(
        "replicas: each replica knows",
        {"router": {"replicas": 2, "sessionStore": {"url": "valkey://store"}}},
        {"router": {"replicas": 2, "affinity": "None"}},
    ),
    Case(
        "sessionStore: give exactly one",
        {"router": {"sessionStore": {"secretRef": {"name": "store"}}}},
        {"router": {"sessionStore": {"url": "valkey://store", "secretRef": {"name": "store"}}}},
    ),
    Case(
        "sessionStore.url: must be",
        {"router": {"sessionStore": {"url": "rediss://store:6379/1"}}},
        {"router": {"sessionStore": {"url": "redis://:password@store"}}},
    ),
    Case(
        "kvTransfer.backend: UCX on EFA",
        {"kvTransfer": {"backend": "UCX", "allowSlowTransport": True}},
        {"kvTransfer": {"backend": "UCX"}},
    ),
    Case(
        "kvTransfer.backend: LIBFABRIC needs EFA",
        CPU | {"kvTransfer": {"backend": "UCX"}},
        CPU | {"kvTransfer": {"backend": "LIBFABRIC"}},
    ),
    Case(
        "ttlSeconds: must not be above maxHoldSeconds",
        {"kvTransfer": {"bidirectional": {"ttlSeconds": 600, "maxHoldSeconds": 600}}},
        {"kvTransfer": {"bidirectional": {"ttlSeconds": 601, "maxHoldSeconds": 600}}},
    ),
    Case(
        "ttlSeconds: outside tuning.ttlSeconds",
        {"kvTransfer": {"bidirectional": {"ttlSeconds": 60, "tuning": {"ttlSeconds": {"min": 60, "max": 90}}}}},
        {"kvTransfer": {"bidirectional": {"ttlSeconds": 59, "tuning": {"ttlSeconds": {"min": 60, "max": 90}}}}},
    ),
    Case(
        "recomputeThresholdTokens: outside tuning",
        {"kvTransfer": {"bidirectional": {"tuning": {"recomputeThresholdTokens": {"min": 0, "max": 64}}}}},
        {"kvTransfer": {"bidirectional": {"tuning": {"recomputeThresholdTokens": {"min": 0, "max": 63}}}}},
    ),
    Case(
        "min must not be above max",
        {"kvTransfer": {"bidirectional": {"tuning": {"ttlSeconds": {"min": 480, "max": 480}}}}},
        {"kvTransfer": {"bidirectional": {"tuning": {"ttlSeconds": {"min": 481, "max": 480}}}}},
    ),
    Case(
        "tuning.mode: only Fixed",
        {"kvTransfer": {"bidirectional": {"tuning": {"mode": "Fixed"}}}},
        {"kvTransfer": {"bidirectional": {"tuning": {"mode": "Auto"}}}},
    ),
    Case(
        "kvTransfer.bidirectional.enabled: needs vLLM",
        {"engine": {"image": "vllm:v0.26.0", "connector": "Stock"}, "kvTransfer": {"bidirectional": {"enabled": True}}},
        {"engine": {"image": "vllm:v0.25.1", "connector": "Stock"}, "kvTransfer": {"bidirectional": {"enabled": True}}},
    ),
    Case(
        "kvTransfer.bidirectional.enabled: on Neuron",
        NEURON | {"kvTransfer": {"bidirectional": {"enabled": True}}},
        NEURON | {"engine": {"image": "neuron:0.21.0"}, "kvTransfer": {"bidirectional": {"enabled": True}}},
    ),
    Case("monitoring.podMonitor: not acted on", {"monitoring": {}}, {"monitoring": {"podMonitor": {"enabled": True}}}),
    Case(
        "instanceType: prefill and decode must both",
        {"prefill": {"instanceType": "p5.48xlarge"}},
        {"prefill": {"instanceType": "cpu"}},
    ),
    Case(
        "tensorParallelSize: one role's must divide",
        {"prefill": {"tensorParallelSize": 2}, "decode": {"tensorParallelSize": 8}},
        {"prefill": {"tensorParallelSize": 3}, "decode": {"tensorParallelSize": 8}},
    ),
    Case(
        "decode.pipelineParallelSize: must be 1",
        {"decode": {"pipelineParallelSize": 1}},
        {"decode": {"pipelineParallelSize": 2}},
    ),
    Case(
        "prefill.pipelineParallelSize: only 1",
        {"prefill": {"pipelineParallelSize": 1}},
        {"prefill": {"pipelineParallelSize": 2}},
    ),
    Case(
        "engine.connector: Guarded has not been run on Neuron",
        NEURON | {"engine": {"image": "neuron:0.24.0", "connector": "Stock"}},
        NEURON | {"engine": {"image": "neuron:0.24.0", "connector": "Guarded"}},
    ),
    Case(
        "engine.connector: Guarded has been tested",
        {"engine": {"image": "vllm:nightly", "version": "0.32.1"}},
        {"engine": {"image": "vllm/vllm-openai:v0.31.0"}},
    ),
)
