"""A node of the lab as an EC2 instance: its labels, and its accelerators and EFA interfaces as pretended devices."""

from __future__ import annotations

import json
import sys
from typing import Final

from duplex_lab import processes
from duplex_lab.errors import LabError
from duplex_lab.local_cluster import LocalCluster

ZONE: Final = "lab-1a"
_REGISTERED_SECONDS: Final = 60.0
_PATHS: Final = {
    "nvidia.com/gpu": "/dev/nvidia{}",
    "aws.amazon.com/neuron": "/dev/neuron{}",
    "vpc.amazonaws.com/efa": "/dev/infiniband/uverbs{}",
}


def pretend(cluster: LocalCluster, node: str, instance_type: str, devices: dict[str, int]) -> str:
    """Make a node one of `instance_type` with so many devices by resource; returns when the kubelet counts them.

    It stays so until the lab ends. Returns one line that says what was done.
    """
    unknown = devices.keys() - _PATHS.keys()
    if unknown:
        raise LabError(f"no device {', '.join(sorted(unknown))}; there are {', '.join(_PATHS)}")
    target = cluster.node(node)
    words = [f"{resource}={count}={_PATHS[resource]}" for resource, count in devices.items()]
    folder = "/var/lib/kubelet/pretended-devices"
    target.start_program("device-plugin", [sys.executable, "-m", "duplex_lab.device_plugin", folder, *words])
    labels = {"node.kubernetes.io/instance-type": instance_type, "topology.kubernetes.io/zone": ZONE}
    given = [f"{key}={value}" for key, value in labels.items()]
    cluster.kubectl("label", "--overwrite", "node", node, *given)

    def counted() -> bool:
        shown = json.loads(cluster.kubectl("get", "node", node, "-o", "json").stdout)["status"]["allocatable"]
        return all(shown.get(resource) == str(count) for resource, count in devices.items())

    if not processes.wait_until(counted, _REGISTERED_SECONDS):
        log = processes.last_lines(target.log("device-plugin"))
        raise LabError(f"the kubelet of {node} does not count the devices; the plugin says:\n{log}")
    return f"{node} is a {instance_type} with {', '.join(f'{count} {name}' for name, count in devices.items())}"
