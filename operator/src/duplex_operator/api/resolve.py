"""The computed defaults: one pure function from a spec to everything that it leaves unsaid."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from duplex_connector.contract import (
    FEATURE_STREAMS_KV_PARAMS,
    Backend,
    Capability,
    ConnectorKind,
    capability,
)
from duplex_connector.contract import Role as RoleName
from duplex_operator.api.instances import Accelerator, InstanceType, instance_type
from duplex_operator.api.kv_transfer import TransportBackend
from duplex_operator.api.models import Spec
from duplex_operator.api.role import Role

MODEL_MOUNT: Final = "/models"
"""Where weights from a volume or from the node are mounted in engine pods."""

_PLAIN_TAG = re.compile(r":v?(\d+\.\d+(?:\.\d+)?)(?:@sha256:[0-9a-f]+)?$")


@dataclass(frozen=True)
class ResolvedRole:
    """One role with nothing left open. `devices` and `efa` are those of one pod."""

    name: RoleName
    spec: Role
    instance: InstanceType
    devices: int
    efa: int
    tensor_parallel_size: int
    data_parallel_size: int

    @property
    def ranks(self) -> int:
        """Processes that compute in one pod, each an agent of NIXL."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def cores(self) -> int:
        """Ranks that the pod's devices can hold: GPUs, or Neuron logical cores."""
        return self.devices * self.instance.cores_per_device


@dataclass(frozen=True)
class Resolved:
    """A spec with nothing left open.

    `capability` is None where the tables have no such release. `engine_model` is what vLLM's --model gets.
    `streams`: streamed answers carry the transfer parameters, so that streamed turns can be reused.
    """

    version: str
    capability: Capability | None
    served_name: str
    engine_model: str
    connector: ConnectorKind
    backend: Backend
    buffer_device: str
    block_size: int
    bidirectional: bool
    streams: bool
    accelerator: Accelerator
    prefill: ResolvedRole
    decode: ResolvedRole

    @property
    def roles(self) -> tuple[ResolvedRole, ResolvedRole]:
        """Both roles, prefill first."""
        return (self.prefill, self.decode)

    @property
    def neuron(self) -> bool:
        """The engines run on Neuron devices."""
        return self.accelerator is Accelerator.NEURON

    @property
    def fabric(self) -> bool:
        """KV moves over EFA."""
        return self.backend is Backend.LIBFABRIC


def image_version(image: str) -> str:
    """Return the release that an image's tag names, or an empty text where the tag is not a plain version."""
    found = _PLAIN_TAG.search(image)
    return found[1] if found else ""


def resolve(spec: Spec) -> Resolved:
    """Return the spec with every default computed.

    The spec has passed the CRD's rules; KeyError where an instance type is not in the table all the same.
    """
    accelerator = instance_type(spec.prefill.instance_type).accelerator
    neuron = accelerator is Accelerator.NEURON
    version = (spec.engine.version or image_version(spec.engine.image)).removeprefix("v")
    row = capability(version, neuron=neuron)
    backend = _backend(spec, accelerator)
    return Resolved(
        version=version,
        capability=row,
        served_name=spec.model.served_name or spec.model.id,
        engine_model=_engine_model(spec),
        connector=spec.engine.connector or (ConnectorKind.STOCK if neuron else ConnectorKind.GUARDED),
        backend=backend,
        # vllm-neuron registers its device memory under vLLM's word for it, cuda.
        buffer_device="cpu" if accelerator is Accelerator.NONE else "cuda",
        block_size=spec.engine.block_size or (16 if accelerator is Accelerator.NVIDIA else 32),
        bidirectional=_bidirectional(spec, row),
        streams=FEATURE_STREAMS_KV_PARAMS in (spec.engine.features or ()) or bool(row and row.streams_params),
        accelerator=accelerator,
        prefill=_role(RoleName.PREFILL, spec.prefill, fabric=backend is Backend.LIBFABRIC),
        decode=_role(RoleName.DECODE, spec.decode, fabric=backend is Backend.LIBFABRIC),
    )


def _backend(spec: Spec, accelerator: Accelerator) -> Backend:
    if spec.kv_transfer.backend is TransportBackend.AUTO:
        return Backend.UCX if accelerator is Accelerator.NONE else Backend.LIBFABRIC
    return Backend(spec.kv_transfer.backend.value)


def _bidirectional(spec: Spec, row: Capability | None) -> bool:
    """Without a wish, reuse is on only where the engine declines expired reads, which else answer wrongly."""
    wish = spec.kv_transfer.bidirectional.enabled
    return wish if wish is not None else bool(row and row.bidirectional and row.expiry_guard)


def _engine_model(spec: Spec) -> str:
    source = spec.model.source
    if source is None or source.hub is not None:
        return spec.model.id
    if source.s3 is not None:
        return source.s3.uri
    if source.pvc is not None and source.pvc.path:
        return f"{MODEL_MOUNT}/{source.pvc.path}"
    return MODEL_MOUNT


def _role(name: RoleName, spec: Role, *, fabric: bool) -> ResolvedRole:
    instance = instance_type(spec.instance_type)
    data = spec.data_parallel_size
    devices = spec.accelerators_per_pod or (
        # On GPUs one rank takes one device, so an explicit size says the count too.
        spec.tensor_parallel_size * data
        if spec.tensor_parallel_size and instance.accelerator is Accelerator.NVIDIA
        else instance.devices
    )
    return ResolvedRole(
        name=name,
        spec=spec,
        instance=instance,
        devices=devices,
        efa=instance.efa_for(devices) if fabric else 0,
        tensor_parallel_size=spec.tensor_parallel_size or max(devices // data, 1),
        data_parallel_size=data,
    )
