"""The fleet document: what the operator tells routers, or what a file tells a router on its own."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from duplex_connector.contract import ConnectorKind

Positive = Annotated[int, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class FleetError(Exception):
    """A fleet document that cannot be used. The message says where and why."""


class Tenancy(StrEnum):
    """What tells tenants apart: the Authorization header, the tenant header, or nothing."""

    AUTHORIZATION = "Authorization"
    HEADER = "Header"
    NONE = "None"


class Serving(msgspec.Struct, rename="camel", frozen=True):
    """Which DisaggregatedServing this is."""

    name: str = ""
    namespace: str = ""
    generation: int = 0


class Model(msgspec.Struct, rename="camel", frozen=True):
    """The model that the engines serve."""

    name: str
    block_size: Positive = 16
    connector: ConnectorKind = ConnectorKind.GUARDED


class Policy(msgspec.Struct, rename="camel", frozen=True):
    """What holds for every turn. `streams`: engines put kv_transfer_params into streamed answers (vLLM >= 0.33).

    `ttl_seconds`: how long a finished turn is held unless its conversation lives on. On guarded engines that time is
    made of leases of `lease_seconds` at most: what a router that dies held is free again after one of them.
    """

    bidirectional: bool = True
    ttl_seconds: NotNegative = 480
    lease_seconds: Annotated[float, msgspec.Meta(ge=10)] = 60
    max_hold_seconds: NotNegative = 3600
    margin_seconds: NotNegative = 6
    recompute_threshold_tokens: Annotated[int, msgspec.Meta(ge=0)] = 64
    retention_percent: Annotated[int, msgspec.Meta(ge=1, le=90)] = 50
    tenancy: Tenancy = Tenancy.AUTHORIZATION
    streams: bool = True

    @property
    def lease(self) -> float:
        """The seconds of one lease on a guarded engine."""
        return min(self.ttl_seconds, self.lease_seconds)


class StaticEngines(msgspec.Struct, frozen=True):
    """Engines by URL, for a router without Kubernetes."""

    prefill: list[str]
    decode: list[str]


class Revision(msgspec.Struct, rename="camel", frozen=True):
    """Engines that may be paired: the headless Services of both roles, or their URLs."""

    name: str
    weight: Annotated[int, msgspec.Meta(ge=0)] = 100
    prefill: str = ""
    decode: str = ""
    engines: StaticEngines | None = None


class Canary(msgspec.Struct, rename="camel", frozen=True):
    """The router's own two-turn conversation."""

    enabled: bool = True
    interval_seconds: NotNegative = 300


class FleetDocument(msgspec.Struct, rename="camel", frozen=True):
    """The whole document. `version` is (leader term, counter): a router ignores what is lower than it has."""

    model: Model
    revisions: list[Revision]
    version: tuple[int, int] = (0, 0)
    serving: Serving = Serving()
    policy: Policy = Policy()
    draining: list[str] = []
    canary: Canary = Canary()


def read_document(text: bytes) -> FleetDocument:
    """Read the JSON form. Raises FleetError."""
    try:
        document = msgspec.json.decode(text, type=FleetDocument)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FleetError(f"the fleet document cannot be read: {error}") from error
    return check_document(document)


def convert_document(value: object) -> FleetDocument:
    """Read the document from what a YAML or JSON file decoded to. Raises FleetError."""
    try:
        document = msgspec.convert(value, type=FleetDocument)
    except (msgspec.ValidationError, RecursionError) as error:
        raise FleetError(f"the fleet document cannot be read: {error}") from error
    return check_document(document)


def check_document(document: FleetDocument) -> FleetDocument:
    """Check what types cannot say. Raises FleetError."""
    names = [revision.name for revision in document.revisions]
    if len(set(names)) != len(names):
        raise FleetError("the fleet document names a revision twice")
    for revision in document.revisions:
        if revision.engines is None and not (revision.prefill and revision.decode):
            raise FleetError(
                f"revision {revision.name!r} needs the Services `prefill` and `decode`, or `engines` with URLs"
            )
    return document
