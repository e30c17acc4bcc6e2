"""DisaggregatedServing: the resource that people apply. Its spec is here; its parts stand in the modules beside."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from duplex_connector.contract import CAPABILITIES, GROUP, KIND, NEURON_CAPABILITIES, VERSION
from duplex_operator.api.base import ApiModel, Rule, ShortText, Switch, with_rules
from duplex_operator.api.engine import TESTED_LINES, Engine, Model, release_lines, version_in
from duplex_operator.api.kv_transfer import KvTransfer
from duplex_operator.api.role import NEURON_PATTERN, Role
from duplex_operator.api.router import Router
from duplex_operator.api.scaling import ServingScaling
from duplex_operator.api.status import Status

API_VERSION: Final = f"{GROUP}/{VERSION}"

MAX_NAME_LENGTH: Final = 44
"""A child Service is called <name>-prefill-<8 hex> and must fit in 63 characters, with room for a suffix."""


class Rollout(ApiModel):
    """How a change of the engines is rolled out."""

    model_config = with_rules(
        Rule(
            "!has(self.maxSurge) || !has(self.maxUnavailable) || self.maxSurge > 0 || self.maxUnavailable > 0",
            "rollout: maxSurge and maxUnavailable must not both be 0, or no engine could ever be replaced",
        ),
    )

    max_surge: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Matched capacity that may be there above the wanted one, in units: one engine of the role with fewer, with its
    share of the other. Left out: 1; with maxUnavailable above 0: 0."""
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Matched capacity that may be missing, in units. Left out: 0; with maxSurge 0: 1."""
    progress_deadline_seconds: Annotated[int, Field(ge=60, le=86_400)] = 3600
    """A change that has made no progress for so long is Stalled: nothing more is taken from what serves."""
    paused: bool = False
    """True: a change of the engines goes no further; a change of their number is still followed."""


class Placement(ApiModel):
    """Where the engines run."""

    same_zone: bool = True
    """True: all engines in one zone. EFA traffic cannot leave a zone, so it must stay true there."""
    topology_key: ShortText | None = None
    """Node label whose value all engines must share, such as topology.k8s.aws/network-node-layer-3 (the closest)."""
    placement_group: ShortText | None = None
    """Id of the nodes' cluster placement group, from Karpenter's node label karpenter.k8s.aws/placement-group-id."""
    capacity_reservation: ShortText | None = None
    """Id of the nodes' reservation, from Karpenter's node label karpenter.k8s.aws/capacity-reservation-id."""


class Monitoring(ApiModel):
    """Objects for a metrics system."""

    model_config = with_rules(
        Rule(
            "!self.podMonitor.enabled",
            "monitoring.podMonitor: not acted on in this release; remove it and scrape port 9100 of the router pods "
            "and port 8000 of the engine pods",
        )
    )

    pod_monitor: Switch = Switch()
    """PodMonitors of the Prometheus operator."""


_BOTH_TYPES: Final = "[self.prefill.instanceType, self.decode.instanceType]"
_NEURON: Final = f"self.prefill.instanceType.matches('{NEURON_PATTERN}')"
_GUARDED: Final = f"(has(self.engine.connector) ? self.engine.connector == 'Guarded' : !{_NEURON})"
_BOTH_TP: Final = "has(self.prefill.tensorParallelSize) && has(self.decode.tensorParallelSize)"

_ANY_EXTERNAL: Final = "self.prefill.scaling.mode == 'External' || self.decode.scaling.mode == 'External'"
_PARTS: Final = "(self.scaling.ratio.min + ':' + self.scaling.ratio.max).split(':').map(n, int(n))"
"""The numbers in `min` and `max`, prefill before decode in each."""

_WANTS_REUSE: Final = "has(self.kvTransfer.bidirectional.enabled) && self.kvTransfer.bidirectional.enabled"
_NO_REUSE: Final = "has(self.kvTransfer.bidirectional.enabled) && !self.kvTransfer.bidirectional.enabled"
_EXPIRY_LINES: Final = release_lines(row for row in CAPABILITIES if row.bidirectional and row.expiry_guard)
_NEURON_LINES: Final = release_lines(row for row in NEURON_CAPABILITIES if row.bidirectional)

SPEC_RULES: Final = (
    Rule(
        f"{_BOTH_TYPES}.all(t, t == 'cpu') || {_BOTH_TYPES}.all(t, t.matches('{NEURON_PATTERN}'))"
        f" || !{_BOTH_TYPES}.exists(t, t == 'cpu' || t.matches('{NEURON_PATTERN}'))",
        "instanceType: prefill and decode must both have GPUs, both Neuron devices, or both be cpu: "
        "KV cache of one kind cannot be read by another",
    ),
    Rule(
        f"!({_BOTH_TP}) || self.prefill.tensorParallelSize % self.decode.tensorParallelSize == 0"
        " || self.decode.tensorParallelSize % self.prefill.tensorParallelSize == 0",
        "tensorParallelSize: one role's must divide the other's, because each rank reads whole shards of its peer",
    ),
    Rule(
        f"!has(self.scaling.ratio) || {_ANY_EXTERNAL}"
        f" || ({_PARTS}[0] * self.decode.replicas <= {_PARTS}[1] * self.prefill.replicas"
        f" && {_PARTS}[2] * self.decode.replicas >= {_PARTS}[3] * self.prefill.replicas)",
        "scaling.ratio: prefill.replicas to decode.replicas lies outside min..max: change the replicas or the ratio",
    ),
    Rule(
        "self.decode.pipelineParallelSize == 1",
        "decode.pipelineParallelSize: must be 1: vLLM's connector cannot load KV into pipeline stages; "
        "raise tensorParallelSize instead",
    ),
    Rule(
        "self.prefill.pipelineParallelSize == 1",
        "prefill.pipelineParallelSize: only 1 is acted on in this release; raise tensorParallelSize instead",
    ),
    Rule(
        f"(self.prefill.dataParallelSize == 1 && self.decode.dataParallelSize == 1) || ({_NO_REUSE})",
        "dataParallelSize: above 1 only with kvTransfer.bidirectional.enabled: false: what routers say to an engine "
        "about its holds reaches one rank of it, so that holds of the others could be neither renewed nor released",
    ),
    Rule(
        f"self.kvTransfer.backend != 'UCX' || self.kvTransfer.allowSlowTransport || {_BOTH_TYPES}.all(t, t == 'cpu')",
        "kvTransfer.backend: UCX on EFA instance types falls back to TCP: use Auto, or set allowSlowTransport: true",
    ),
    Rule(
        f"self.kvTransfer.backend != 'LIBFABRIC' || !{_BOTH_TYPES}.exists(t, t == 'cpu')",
        "kvTransfer.backend: LIBFABRIC needs EFA, which instanceType cpu has not: use Auto or UCX",
    ),
    Rule(
        f"self.placement.sameZone || {_BOTH_TYPES}.all(t, t == 'cpu')"
        " || (self.kvTransfer.backend == 'UCX' && self.kvTransfer.allowSlowTransport)",
        "placement.sameZone: must stay true on EFA instance types, whose traffic cannot leave a zone",
    ),
    Rule(
        f"!({_GUARDED} && {_NEURON})",
        "engine.connector: Guarded has not been run on Neuron: leave engine.connector out, or set Stock",
    ),
    Rule(
        f"!{_GUARDED} || {_NEURON} || {version_in(TESTED_LINES)}",
        f"engine.connector: Guarded has been tested on vLLM {', '.join(TESTED_LINES)} only: use such an image, "
        "set engine.version to what is inside, or set engine.connector: Stock",
    ),
    Rule(
        f"!({_WANTS_REUSE}) || {_NEURON} || {version_in(_EXPIRY_LINES)}",
        f"kvTransfer.bidirectional.enabled: needs vLLM {', '.join(_EXPIRY_LINES)}: older ones read expired KV and "
        "answer wrongly; use such an image, or set it to false",
    ),
    Rule(
        f"!({_WANTS_REUSE}) || !{_NEURON} || {version_in(_NEURON_LINES)}",
        f"kvTransfer.bidirectional.enabled: on Neuron it needs vllm-neuron {', '.join(_NEURON_LINES)}: use such an "
        "image, or set it to false",
    ),
)


class Spec(ApiModel):
    """What is wanted."""

    model_config = with_rules(*SPEC_RULES)

    model: Model
    """The model that is served."""
    engine: Engine
    """The vLLM that both roles run."""
    prefill: Role
    """Engines that compute prompts."""
    decode: Role
    """Engines that generate, and hold finished turns' KV."""
    scaling: ServingScaling = ServingScaling()
    """Scaling of the roles together."""
    rollout: Rollout = Rollout()
    """How a change of the engines is rolled out."""
    placement: Placement = Placement()
    """Where the engines run."""
    router: Router = Router()
    """The HTTP front."""
    kv_transfer: KvTransfer = KvTransfer()
    """Movement of KV cache between the roles."""
    network_policy: Switch = Switch()
    """NetworkPolicies around the pods of the serving."""
    pod_disruption_budget: Switch = Switch()
    """A PodDisruptionBudget for each role: evictions may take as many engines as rollout.maxUnavailable lets miss.
    Where that is none (the default), a node drain waits until the operator, which sees the node cordoned, has replaced
    and emptied its engines. An operator that watches some namespaces only sees no nodes, and lets one go at a time."""
    monitoring: Monitoring = Monitoring()
    """Objects for a metrics system."""
    suspend: bool = False
    """True: scale everything to nothing and keep the object."""


class Metadata(ApiModel):
    """What the operator reads of metadata."""

    name: str
    namespace: str
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


ROOT_RULES: Final = (
    Rule(
        f"self.metadata.name.size() <= {MAX_NAME_LENGTH} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        f"metadata.name: must begin with a letter, hold only a-z, 0-9 and -, and have at most {MAX_NAME_LENGTH} "
        "characters, because Services are named after it",
    ),
)


class DisaggregatedServing(ApiModel):
    """A model served by prefill and decode engines whose KV cache flows both ways."""

    model_config = with_rules(*ROOT_RULES)

    api_version: Literal["duplex.dev/v1alpha1"] = API_VERSION  # type: ignore[assignment] # equal, by test
    kind: Literal["DisaggregatedServing"] = KIND
    metadata: Metadata
    spec: Spec
    status: Status | None = None

    @property
    def name(self) -> str:
        """Name of the serving."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Namespace of the serving and all its children."""
        return self.metadata.namespace
