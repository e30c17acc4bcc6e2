"""spec.prefill and spec.decode: how many engines of a role run, on what, and with which additions."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from duplex_operator.api.base import ApiModel, PodTemplate, Resources, Rule, with_rules
from duplex_operator.api.engine import ARGS_RULE, CONTEXT_PARALLEL_RULE, ENV_RULE, Arguments, Environment, cel_list
from duplex_operator.api.instances import INSTANCE_TYPES
from duplex_operator.api.scaling import Scaling

NEURON_PATTERN: Final = "^(ml[.])?trn"
"""CEL pattern of instance types with Neuron devices."""

MAX_AGENTS: Final = 256
"""Remote agents that one NIXL process can address (8 bits in the LIBFABRIC plugin's wire format)."""


class Role(ApiModel):
    """The engines of one role."""

    model_config = with_rules(
        Rule(
            "(self.instanceType.startsWith('ml.') ? self.instanceType.substring(3) : self.instanceType) in "
            + cel_list(instance.name for instance in INSTANCE_TYPES),
            "instanceType: not known; use cpu or one of: "
            + ", ".join(instance.name for instance in INSTANCE_TYPES if instance.devices)
            + " (each also with ml. before it)",
        ),
        Rule(
            f"!self.instanceType.matches('{NEURON_PATTERN}') || has(self.tensorParallelSize)",
            "tensorParallelSize: required on Neuron, where it counts logical cores (64 on a whole trn2.48xlarge)",
        ),
        Rule(
            "self.instanceType != 'cpu' || !has(self.acceleratorsPerPod)",
            "acceleratorsPerPod: a role on cpu has no accelerators; remove it",
        ),
        Rule(
            f"self.instanceType.matches('{NEURON_PATTERN}') || !has(self.acceleratorsPerPod)"
            " || !has(self.tensorParallelSize)"
            " || self.tensorParallelSize * self.dataParallelSize == self.acceleratorsPerPod",
            "tensorParallelSize: times dataParallelSize it must equal acceleratorsPerPod, or GPUs stay idle; leave "
            "one of them out",
        ),
        Rule(
            f"self.dataParallelSize == 1 || !self.instanceType.matches('{NEURON_PATTERN}')",
            "dataParallelSize: has not been run on Neuron; raise replicas instead",
        ),
        Rule(
            "self.nodes == 1", "nodes: only 1 is acted on in this release; choose an instance type that holds the model"
        ),
        Rule(
            "!has(self.tensorParallelSize)"
            f" || self.tensorParallelSize * self.dataParallelSize * self.replicas <= {MAX_AGENTS}",
            f"replicas: tensorParallelSize x dataParallelSize x replicas must not exceed {MAX_AGENTS}, the number of "
            "remote agents that NIXL can address: lower replicas, or run a second serving",
        ),
        Rule(
            "!has(self.tensorParallelSize) || !has(self.scaling.maxReplicas)"
            f" || self.tensorParallelSize * self.dataParallelSize * self.scaling.maxReplicas <= {MAX_AGENTS}",
            f"scaling.maxReplicas: tensorParallelSize x dataParallelSize x maxReplicas must not exceed {MAX_AGENTS}, "
            "the number of remote agents that NIXL can address: lower maxReplicas, or run a second serving",
        ),
        ARGS_RULE,
        CONTEXT_PARALLEL_RULE,
        ENV_RULE,
    )

    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Number of engines; with scaling.mode External the number to begin with."""
    instance_type: Annotated[str, Field(min_length=1, max_length=64)]
    """EC2 instance type, or `cpu`; decides devices, EFA interfaces, node selector and transport."""
    accelerators_per_pod: Annotated[int, Field(ge=1, le=64)] | None = None
    """GPUs or Neuron devices of one engine; left out: tensorParallelSize x dataParallelSize on GPUs, else all."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=256)] | None = None
    """Tensor parallel ranks; left out: acceleratorsPerPod / dataParallelSize. On Neuron it counts logical cores."""
    data_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    """Data parallel ranks of one engine, each with a side channel of its own; above 1 only without reuse."""
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    """Pipeline stages of one engine."""
    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Nodes of one engine."""
    args: Arguments | None = None
    """More vLLM flags for this role, after those of the engine."""
    env: Environment | None = None
    """More environment variables for this role; they win over those of the engine."""
    resources: Resources | None = None
    """Resources of the engine container, over what the instance type gives."""
    pod_template: PodTemplate | None = None
    """A partial pod template, merged last: maps by key, lists of named objects by name."""
    scaling: Scaling = Scaling()
    """Who decides on the number of engines."""
    drain_seconds: Annotated[int, Field(ge=0, le=86_400)] = 120
    """Longest time that an engine which is taken away goes on serving what it holds. An edit acts at once on what the
    operator takes away, and restarts no engine; on evictions it acts with the engines' next revision."""
