"""The settings of a node's programs, as documents: pure.

containerd 1.6 and later (version 2 of its file), CNI 1.0, kubelet and kube-proxy of Kubernetes 1.36, CoreDNS 1.14.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from duplex_lab.components import CLUSTER_DOMAIN, POD_RANGE
from duplex_lab.plan import NodePlan

SANDBOX_IMAGE: Final = "duplex.local/pause:1"


def container_network(pod_range: str) -> dict[str, Any]:
    """Return the CNI configuration: a bridge per node, addresses from the node's range."""
    return {
        "cniVersion": "1.0.0",
        "name": "lab",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": [[{"subnet": pod_range}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
        ],
    }


def containerd(network: Path, plugins: Path, host_runtime: str, host_runtime_spec: Path) -> str:
    """Return containerd's configuration file.

    restrict_oom_score_adj: the machine may itself be a container that must not lower scores, and every sandbox would
    fail with "can't get final child's PID from pipe: EOF". AppArmor profiles cannot be loaded from inside either.
    """
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{SANDBOX_IMAGE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{host_runtime}]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "{host_runtime_spec}"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plugins}"
  conf_dir = "{network}"
"""


def host_runtime(default: Mapping[str, Any], mounts: Mapping[str, str]) -> dict[str, Any]:
    """Return containerd's default container specification with folders of the machine added, read-only.

    `mounts` maps a path on the node to the path in the container.
    """
    spec = copy.deepcopy(dict(default))
    spec["mounts"] += [
        {"source": source, "destination": target, "type": "bind", "options": ["rbind", "ro", "rprivate"]}
        for source, target in mounts.items()
    ]
    return spec


def kubelet(plan: NodePlan, authority: Path, nameserver: str, resolver: Path) -> dict[str, Any]:
    """Return kubelet's configuration: any machine will do, and nothing is evicted for want of disk."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{plan.cgroup}",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "address": plan.address,
        "healthzBindAddress": "127.0.0.1",
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [nameserver],
        "resolvConf": str(resolver),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "nodeStatusUpdateFrequency": "2s",
        "fileCheckFrequency": "5s",
        "maxPods": 200,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
        "enableControllerAttachDetach": False,
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
    }


def kube_proxy(plan: NodePlan, kubeconfig: Path) -> dict[str, Any]:
    """Return kube-proxy's configuration: iptables, quick to follow changes, conntrack limits left alone."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": plan.address,
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": plan.name,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        # The limits are the whole machine's and cannot be set from a network namespace.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
    }


def dns(address: str, kubeconfig: Path) -> str:
    """Return CoreDNS's Corefile: cluster names only, answered from the API; other names fail at once."""
    return f""".:53 {{
  bind {address}
  errors
  health 127.0.0.1:8089
  kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 1
  }}
}}
"""


def runtime_class(name: str) -> dict[str, Any]:
    """Return the RuntimeClass object of a containerd runtime of the same name."""
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": name,
    }
