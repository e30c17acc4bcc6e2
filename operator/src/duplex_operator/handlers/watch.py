"""The handlers, one line each, and kopf's settings: it watches, and writes nothing to any object."""

from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from duplex_connector.contract import GROUP, MANAGED_BY, PLURAL, VERSION
from duplex_kube.client import Credentials


class NoMemory(kopf.DiffBaseStorage):
    """kopf's record of what it handled last, not kept: no annotation on objects, and half the time of an event.

    Right only because no change-detecting handler is registered: those would fire for ever.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:  # noqa: ANN401 - kopf's signature
        """See kopf."""
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:  # noqa: ANN401 - kopf's signature
        """See kopf."""
        return None

    def store(self, **_: Any) -> None:  # noqa: ANN401 - kopf's signature
        """See kopf."""


def make_registry(
    credentials: Callable[[], Awaitable[Credentials]], on_event: Callable[[kopf.RawEvent], None]
) -> kopf.OperatorRegistry:
    """Register everything with a registry of its own, so that one process can hold several operators."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:  # noqa: ANN401 - kopf's signature
        return connection_info(await credentials())

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def changed(event: kopf.RawEvent, **_: Any) -> None:  # noqa: ANN401 - kopf's signature
        on_event(event)

    return registry


def connection_info(credentials: Credentials) -> kopf.ConnectionInfo:
    """Say to kopf how our own client reaches the cluster."""
    return kopf.ConnectionInfo(
        server=credentials.server,
        ca_path=credentials.authority_path,
        insecure=not credentials.verify,
        token=credentials.token,
        certificate_path=credentials.certificate_path,
        private_key_path=credentials.private_key_path,
    )


def make_settings() -> kopf.OperatorSettings:
    """Return kopf's settings for a watch that must not hang, flood or write."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True  # the Lease elects
    settings.posting.enabled = False  # events are posted on transitions, by the reconcile
    settings.persistence.diffbase_storage = NoMemory()
    settings.persistence.finalizer = f"{GROUP}/{MANAGED_BY}"
    settings.persistence.consistency_timeout = 0
    settings.watching.chunk_size = 500
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 10
    settings.watching.reconnect_backoff = 1
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.queueing.idle_timeout = 2
    settings.process.ultimate_exiting_timeout = None  # kopf would kill the process, without a word; a kubelet does that
    settings.scanning.disabled = True  # the CRD is there before the operator, and namespaces are named or all
    return settings
