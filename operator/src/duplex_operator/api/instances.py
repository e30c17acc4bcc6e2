"""The instance types that a role may name: their accelerators, EFA devices and memory, as data.

Sources: Karpenter's instance list, the EKS and EC2 guides, the Neuron SDK's architecture pages (as of 2026-08).
Memory is in GiB, bandwidth in Gbit/s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

CPU: Final = "cpu"
"""The type without any device: real vLLM on CPU, or the simulator, on any node."""

HYPERPOD_PREFIX: Final = "ml."
"""SageMaker HyperPod nodes carry this before the EC2 type in node.kubernetes.io/instance-type."""


class Accelerator(StrEnum):
    """What computes in an instance."""

    NVIDIA = "nvidia"
    NEURON = "neuron"
    NONE = "none"


@dataclass(frozen=True)
class InstanceType:
    """One EC2 instance type, or `cpu`.

    `devices`: GPUs, or Neuron devices (chips). `cores_per_device`: Neuron logical cores at the default setting
    (LNC=2 on trn2), which tensor parallelism counts; 1 on GPUs. `device_memory_mib`: of one device.
    `efa`: EFA interfaces that the device plugin advertises. `efa_gbps`: of all of them.
    """

    name: str
    accelerator: Accelerator
    devices: int
    device_name: str
    device_memory_mib: int
    efa: int
    efa_gbps: int
    vcpu: int
    memory_gib: int
    cores_per_device: int = 1

    @property
    def resource(self) -> str | None:
        """Name of the extended resource that stands for one device; None without devices."""
        return {Accelerator.NVIDIA: "nvidia.com/gpu", Accelerator.NEURON: "aws.amazon.com/neuron"}.get(self.accelerator)

    def efa_for(self, devices: int) -> int:
        """Return the EFA interfaces of a pod with so many devices: its fair share, rounded up.

        More would strand devices of the node: the device plugin gives each EFA to one pod only.
        """
        return math.ceil(devices * self.efa / self.devices) if self.efa else 0


def _gpu(name: str, devices: int, device: tuple[str, int], efa: tuple[int, int], host: tuple[int, int]) -> InstanceType:
    return InstanceType(
        name=name,
        accelerator=Accelerator.NVIDIA,
        devices=devices,
        device_name=device[0],
        device_memory_mib=device[1],
        efa=efa[0],
        efa_gbps=efa[1],
        vcpu=host[0],
        memory_gib=host[1],
    )


def _neuron(name: str, device: tuple[str, int, int], efa: tuple[int, int], host: tuple[int, int]) -> InstanceType:
    return InstanceType(
        name=name,
        accelerator=Accelerator.NEURON,
        devices=16,
        device_name=device[0],
        device_memory_mib=device[1],
        cores_per_device=device[2],
        efa=efa[0],
        efa_gbps=efa[1],
        vcpu=host[0],
        memory_gib=host[1],
    )


_H100 = ("H100", 81920)
_H200 = ("H200", 144384)
_L40S = ("L40S", 45776)
_RTX = ("RTX PRO 6000", 98304)
_TRN1 = ("Trainium", 32 * 1024, 2)
_TRN2 = ("Trainium2", 96 * 1024, 4)

INSTANCE_TYPES: Final = (
    InstanceType(
        CPU,
        Accelerator.NONE,
        devices=0,
        device_name="none",
        device_memory_mib=0,
        efa=0,
        efa_gbps=0,
        vcpu=0,
        memory_gib=0,
    ),
    _gpu("p4d.24xlarge", 8, ("A100", 40960), (4, 400), (96, 1152)),
    _gpu("p4de.24xlarge", 8, ("A100", 81920), (4, 400), (96, 1152)),
    _gpu("p5.4xlarge", 1, _H100, (1, 100), (16, 256)),
    _gpu("p5.48xlarge", 8, _H100, (32, 3200), (192, 2048)),
    _gpu("p5e.48xlarge", 8, _H200, (32, 3200), (192, 2048)),
    _gpu("p5en.48xlarge", 8, _H200, (16, 3200), (192, 2048)),
    _gpu("p6-b200.48xlarge", 8, ("B200", 183359), (8, 3200), (192, 2048)),
    _gpu("p6-b300.48xlarge", 8, ("B300", 275040), (16, 6400), (192, 4096)),
    _gpu("g6e.8xlarge", 1, _L40S, (1, 25), (32, 256)),
    _gpu("g6e.12xlarge", 4, _L40S, (1, 100), (48, 384)),
    _gpu("g6e.16xlarge", 1, _L40S, (1, 35), (64, 512)),
    _gpu("g6e.24xlarge", 4, _L40S, (2, 200), (96, 768)),
    _gpu("g6e.48xlarge", 8, _L40S, (4, 400), (192, 1536)),
    _gpu("g7e.8xlarge", 1, _RTX, (1, 100), (32, 256)),
    _gpu("g7e.12xlarge", 2, _RTX, (1, 400), (48, 512)),
    _gpu("g7e.24xlarge", 4, _RTX, (2, 800), (96, 1024)),
    _gpu("g7e.48xlarge", 8, _RTX, (4, 1600), (192, 2048)),
    _neuron("trn1.32xlarge", _TRN1, (8, 800), (128, 512)),
    _neuron("trn1n.32xlarge", _TRN1, (16, 1600), (128, 512)),
    _neuron("trn2.48xlarge", _TRN2, (16, 3200), (192, 2048)),
    _neuron("trn2u.48xlarge", _TRN2, (16, 3200), (192, 2048)),
)

_BY_NAME: Final = {instance.name: instance for instance in INSTANCE_TYPES}


def instance_type(name: str) -> InstanceType:
    """Return the row for a type as a role names it, with or without HyperPod's prefix; KeyError where there is none."""
    return _BY_NAME[name.removeprefix(HYPERPOD_PREFIX)]
