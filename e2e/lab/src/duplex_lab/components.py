"""Command lines of the control plane's components: pure functions of where it runs and of its certificates.

Flags are those of Kubernetes 1.36 and etcd 3.6. They trade durability and availability, which a lab does not need, for
a start within seconds: no fsync, no leader election, no shutdown delay.
"""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from duplex_lab.certificates import Authority, KeyPair, signing_pair

SERVICE_RANGE: Final = "10.96.0.0/16"
SERVICE_ADDRESS: Final = "10.96.0.1"
POD_RANGE: Final = "10.244.0.0/16"
CLUSTER_DOMAIN: Final = "cluster.local"


@dataclass(frozen=True)
class Ports:
    """TCP ports of the components on the control plane's address."""

    apiserver: int = 6443
    etcd: int = 2379
    etcd_peer: int = 2380
    controllers: int = 10257
    scheduler: int = 10259
    kwok: int = 10247


def free_ports(address: str) -> Ports:
    """Pick ports that nobody listens on, below the range that the kernel gives to outgoing connections."""
    taken: list[socket.socket] = []
    try:
        while len(taken) < len(Ports.__dataclass_fields__):
            candidate = socket.socket()
            taken.append(candidate)
            try:
                candidate.bind((address, random.randrange(20000, 32000)))  # noqa: S311 - any free port will do
            except OSError:
                taken.pop().close()
        return Ports(*(candidate.getsockname()[1] for candidate in taken))
    finally:
        for candidate in taken:
            candidate.close()


@dataclass(frozen=True)
class Place:
    """Where the components run, and how this process reaches their API server.

    `enter` is a command prefix that ends in the network where `address` is and forks once (nsenter with a pid
    namespace); empty for this process's own network. `server` is the API server's URL as seen from here, `names` are
    further addresses that its certificate must bear.
    """

    address: str
    ports: Ports
    server: str
    enter: tuple[str, ...] = ()

    @classmethod
    def loopback(cls) -> Self:
        """Return a place on this machine's loopback with free ports."""
        ports = free_ports("127.0.0.1")
        return cls("127.0.0.1", ports, f"https://127.0.0.1:{ports.apiserver}")

    @property
    def inside_server(self) -> str:
        """The API server's URL as the components themselves reach it."""
        return f"https://{self.address}:{self.ports.apiserver}"


class Keys:
    """The certificates of one control plane, made anew in `folder`."""

    def __init__(self, folder: Path, place: Place) -> None:
        self.authority = Authority(folder, "ca")
        front = Authority(folder, "front-proxy-ca")
        self.front_authority = front.certificate
        self.front_client = front.client("front-proxy-client", "front-proxy-client")
        self.token_private, self.token_public = signing_pair(folder, "service-account")
        service = "kubernetes.default.svc"
        self.apiserver = self.authority.server(
            "apiserver",
            "kube-apiserver",
            [
                place.address,
                "127.0.0.1",
                "localhost",
                "kubernetes",
                "kubernetes.default",
                service,
                f"{service}.{CLUSTER_DOMAIN}",
                SERVICE_ADDRESS,
            ],
        )
        self.kubelet_client = self.authority.client(
            "kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"]
        )
        self.admin = self.authority.client("admin", "kubernetes-admin", ["system:masters"])
        self.controllers = self.authority.client("kube-controller-manager", "system:kube-controller-manager")
        self.scheduler = self.authority.client("kube-scheduler", "system:kube-scheduler")

    def node(self, name: str) -> KeyPair:
        """Issue the client certificate of a node's kubelet."""
        return self.authority.client(f"node-{name}", f"system:node:{name}", ["system:nodes"])


def etcd_flags(folder: Path, place: Place) -> list[str]:
    """Return the flags of a single-member etcd that keeps its data below folder."""
    client = f"http://{place.address}:{place.ports.etcd}"
    peer = f"http://{place.address}:{place.ports.etcd_peer}"
    return [
        "--name=lab",
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=lab={peer}",
        "--log-level=warn",
        "--unsafe-no-fsync",
    ]


def apiserver_flags(place: Place, keys: Keys, audit_policy: Path, audit_log: Path) -> list[str]:
    """Return the API server's flags: Node and RBAC authorization, service-account tokens, a kubelet client."""
    return [
        f"--audit-policy-file={audit_policy}",
        f"--audit-log-path={audit_log}",
        "--audit-log-maxsize=100",
        "--audit-log-maxbackup=1",
        f"--etcd-servers=http://{place.address}:{place.ports.etcd}",
        f"--bind-address={place.address}",
        f"--advertise-address={place.address}",
        f"--secure-port={place.ports.apiserver}",
        # Without endpoints of its own, Service `kubernetes` would lead nowhere inside pods.
        "--endpoint-reconciler-type=lease" if place.enter else "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={keys.authority.certificate}",
        f"--tls-cert-file={keys.apiserver.certificate}",
        f"--tls-private-key-file={keys.apiserver.key}",
        f"--service-account-key-file={keys.token_public}",
        f"--service-account-signing-key-file={keys.token_private}",
        f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        f"--kubelet-client-certificate={keys.kubelet_client.certificate}",
        f"--kubelet-client-key={keys.kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        f"--proxy-client-cert-file={keys.front_client.certificate}",
        f"--proxy-client-key-file={keys.front_client.key}",
        f"--requestheader-client-ca-file={keys.front_authority}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        "--shutdown-delay-duration=0s",
        "--shutdown-send-retry-after=false",
    ]


def controllers_flags(place: Place, keys: Keys) -> list[str]:
    """Return the controller manager's flags, without its kubeconfigs."""
    return [
        f"--bind-address={place.address}",
        f"--secure-port={place.ports.controllers}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={keys.token_private}",
        f"--root-ca-file={keys.authority.certificate}",
        f"--cluster-signing-cert-file={keys.authority.pair.certificate}",
        f"--cluster-signing-key-file={keys.authority.pair.key}",
        "--allocate-node-cidrs=true",
        f"--cluster-cidr={POD_RANGE}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        # At the default 20 requests a second the first namespaces wait seconds for their service accounts.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def scheduler_flags(place: Place) -> list[str]:
    """Return the scheduler's flags, without its kubeconfigs."""
    return [
        f"--bind-address={place.address}",
        f"--secure-port={place.ports.scheduler}",
        "--leader-elect=false",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


KWOK_NODE_ANNOTATION: Final = "kwok.x-k8s.io/node"


def kwok_flags(place: Place, kubeconfig: Path, stages: Path) -> list[str]:
    """Return the flags of kwok, which plays the nodes that bear its annotation."""
    return [
        f"--kubeconfig={kubeconfig}",
        f"--config={stages}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={KWOK_NODE_ANNOTATION}=fake",
        f"--cidr={POD_RANGE}",
        f"--node-ip={place.address}",
        f"--server-address={place.address}:{place.ports.kwok}",
        f"--node-port={place.ports.kwok}",
        "--node-lease-duration-seconds=40",
    ]
