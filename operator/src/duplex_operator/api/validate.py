"""What the CRD's CEL rules cannot say about a spec: rules over computed defaults, version rows and pod templates.

The operator turns a problem into the condition Stalled; nothing is rendered until it is solved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duplex_connector.contract import CAPABILITIES, NEURON_CAPABILITIES, ConnectorKind
from duplex_operator.api.base import EnvVar, Problem
from duplex_operator.api.engine import REFUSED_ENV, TESTED_LINES, refused_flag
from duplex_operator.api.instances import Accelerator, instance_type
from duplex_operator.api.limits import limits_of
from duplex_operator.api.models import Spec
from duplex_operator.api.pod_template import engine_template_problems, router_template_problems
from duplex_operator.api.resolve import Resolved, ResolvedRole, resolve
from duplex_operator.api.role import MAX_AGENTS


def validate(spec: Spec) -> list[Problem]:
    """Return every problem of a spec, in the order of its fields; an empty list where it can be rendered."""
    unknown = list(_unknown_types(spec))
    if unknown:
        return unknown
    resolved = resolve(spec)
    return [
        *_version_problems(resolved),
        *_owned_problems("engine", spec.engine.args, spec.engine.env),
        *_role_problems(resolved.prefill),
        *_role_problems(resolved.decode),
        *_pair_problems(resolved),
        *_ratio_problems(spec),
        *router_template_problems("router.podTemplate", spec.router.pod_template or {}),
    ]


def _unknown_types(spec: Spec) -> Iterator[Problem]:
    for name, role in (("prefill", spec.prefill), ("decode", spec.decode)):
        try:
            instance_type(role.instance_type)
        except KeyError:
            yield Problem(f"{name}.instanceType", f"{role.instance_type} is not known: use one of the reference table")


def _version_problems(resolved: Resolved) -> Iterator[Problem]:
    row = resolved.capability
    if not resolved.version:
        yield Problem("engine.version", "the image's tag is not a plain version: set it to the vLLM release inside")
        return
    if row is None:
        table = NEURON_CAPABILITIES if resolved.neuron else CAPABILITIES
        known = ", ".join(f"{known.version[0]}.{known.version[1]}" for known in table)
        yield Problem("engine.version", f"{resolved.version} is not known to this release; known are {known}")
        return
    if resolved.connector is ConnectorKind.GUARDED and not row.guarded_tested:
        yield Problem(
            "engine.connector",
            f"Guarded has been tested on vLLM {', '.join(TESTED_LINES)} only: use such an image, or set Stock",
        )
    if not resolved.bidirectional:
        return
    if not row.bidirectional:
        yield Problem(
            "kvTransfer.bidirectional.enabled",
            f"{resolved.version} cannot pull from decode: use vLLM 0.26 or newer (vllm-neuron 0.24), or set false",
        )
    elif not row.expiry_guard and not resolved.neuron:
        yield Problem(
            "kvTransfer.bidirectional.enabled",
            f"{resolved.version} reads expired KV and answers wrongly: use vLLM 0.26 or newer, or set false",
        )


def _owned_problems(field: str, args: Sequence[str] | None, env: Sequence[EnvVar] | None) -> Iterator[Problem]:
    for argument in args or ():
        if refused_flag(argument):
            yield Problem(f"{field}.args", f"{argument}: the operator writes this flag; remove it")
    for variable in env or ():
        if variable.name in REFUSED_ENV:
            yield Problem(f"{field}.env", f"{variable.name}: the operator writes this variable; remove it")


def _role_problems(role: ResolvedRole) -> Iterator[Problem]:
    name = role.name.value
    instance = role.instance
    yield from _owned_problems(name, role.spec.args, role.spec.env)
    yield from engine_template_problems(f"{name}.podTemplate", role.spec.pod_template or {})
    if instance.devices and role.devices > instance.devices:
        yield Problem(
            f"{name}.acceleratorsPerPod",
            f"{role.devices} do not fit on {instance.name}, which has {instance.devices}",
        )
    if instance.accelerator is Accelerator.NEURON:
        if role.tensor_parallel_size > role.cores:
            yield Problem(
                f"{name}.tensorParallelSize",
                f"{role.tensor_parallel_size} ranks do not fit on the {role.cores} logical cores of the pod's devices",
            )
    elif instance.devices and role.ranks != role.devices:
        yield Problem(
            f"{name}.tensorParallelSize",
            f"{role.ranks} ranks on {role.devices} GPUs: set both to the same, or leave one out",
        )


def _pair_problems(resolved: Resolved) -> Iterator[Problem]:
    prefill, decode = resolved.roles
    sizes = sorted((prefill.tensor_parallel_size, decode.tensor_parallel_size))
    if sizes[1] % sizes[0]:
        yield Problem(
            "decode.tensorParallelSize", f"{sizes[0]} does not divide {sizes[1]}: one role's must divide the other's"
        )
    if prefill.instance.accelerator is not decode.instance.accelerator:
        yield Problem(
            "decode.instanceType",
            "prefill and decode must have the same kind of accelerator: KV cache of one kind cannot be read by another",
        )
    for role in resolved.roles:
        agents = role.ranks * role.spec.replicas
        if agents > MAX_AGENTS:
            yield Problem(
                f"{role.name.value}.replicas",
                f"{agents} ranks exceed the {MAX_AGENTS} remote agents that NIXL can address: lower replicas, "
                "or run a second serving",
            )


def _ratio_problems(spec: Spec) -> Iterator[Problem]:
    limits = limits_of(spec)
    if limits.settle(spec.prefill.replicas, spec.decode.replicas) is None:
        each = ", ".join(
            f"{name} {each.least}..{each.most}"
            for name, each in (("prefill", limits.prefill), ("decode", limits.decode))
        )
        yield Problem("scaling.ratio", f"no sizes within {each} keep it: widen it, or the bounds in scaling of a role")
