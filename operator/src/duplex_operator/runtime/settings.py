"""What whoever installs the operator decides."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one operator process.

    ``namespaces`` empty: all of the cluster. ``identity`` is this process's name in the Lease and must be its own.
    ``watch_nodes``: see cordoned nodes, and replace and empty their engines before a drain.
    ``lease_namespace`` is where it runs. ``cluster_domain`` is the DNS domain of Services.
    """

    router_image: str
    connector_image: str
    identity: str
    lease_namespace: str
    lease_name: str = "duplex-operator"
    namespaces: tuple[str, ...] = ()
    watch_nodes: bool = False
    cluster_domain: str = "cluster.local"
    kubeconfig: Path | None = None
    health_host: str = "127.0.0.1"
    health_port: int = 8080
    workers: int = 16

    def __post_init__(self) -> None:
        for name in ("router_image", "connector_image", "identity", "lease_namespace"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty")
        if self.workers < 1:
            raise ValueError("workers must be at least 1")
