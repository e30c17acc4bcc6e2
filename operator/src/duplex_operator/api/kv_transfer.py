"""spec.kvTransfer: how KV cache moves between the roles, how long decode holds it, and what is worth fetching."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from duplex_operator.api.base import ApiModel, Bounds, Rule, with_rules


class TransportBackend(StrEnum):
    """Which NIXL transport moves KV."""

    AUTO = "Auto"
    LIBFABRIC = "LIBFABRIC"
    UCX = "UCX"


class KvRole(StrEnum):
    """How kv_role is set in the engines."""

    BOTH = "Both"
    PER_ROLE = "PerRole"


class RetentionBudget(ApiModel):
    """How much KV finished turns may hold."""

    model_config = ConfigDict(alias_generator=lambda name: to_camel(name).replace("Kv", "KV"))

    percent_of_kv: Annotated[int, Field(ge=1, le=90)] = 50
    """Share of each decode engine's KV cache, in percent."""


class TuningMode(StrEnum):
    """Who sets TTL and threshold."""

    FIXED = "Fixed"
    RECOMMEND = "Recommend"
    AUTO = "Auto"


class Tuning(ApiModel):
    """Automatic choice of TTL and threshold."""

    model_config = with_rules(
        Rule(
            "self.mode == 'Fixed'",
            "tuning.mode: only Fixed is acted on in this release; set ttlSeconds and recomputeThresholdTokens yourself",
        )
    )

    mode: TuningMode = TuningMode.FIXED
    """Fixed: the values of spec rule. Recommend: status says better ones. Auto: they are applied within the bounds."""
    ttl_seconds: Bounds | None = None
    """Bounds of the TTL."""
    recompute_threshold_tokens: Bounds | None = None
    """Bounds of the threshold."""


class Bidirectional(ApiModel):
    """Reuse of finished turns: decode holds their KV, and prefill pulls it for the next turn."""

    model_config = with_rules(
        Rule(
            "self.ttlSeconds <= self.maxHoldSeconds",
            "ttlSeconds: must not be above maxHoldSeconds, at which every hold ends",
        ),
        Rule(
            "!has(self.tuning.ttlSeconds)"
            " || (self.ttlSeconds >= self.tuning.ttlSeconds.min && self.ttlSeconds <= self.tuning.ttlSeconds.max)",
            "ttlSeconds: outside tuning.ttlSeconds; move it inside, or widen the bounds",
        ),
        Rule(
            "!has(self.tuning.recomputeThresholdTokens)"
            " || (self.recomputeThresholdTokens >= self.tuning.recomputeThresholdTokens.min"
            " && self.recomputeThresholdTokens <= self.tuning.recomputeThresholdTokens.max)",
            "recomputeThresholdTokens: outside tuning.recomputeThresholdTokens; move it inside, or widen the bounds",
        ),
    )

    enabled: bool | None = None
    """False: nothing is retained. Left out: true where the engine can do it safely; on Neuron false."""
    ttl_seconds: Annotated[int, Field(ge=6, le=86_400)] = 480
    """How long decode holds a finished turn's KV unless renewed; a reader declines the last 5 seconds."""
    max_hold_seconds: Annotated[int, Field(ge=6, le=604_800)] = 3600
    """Renewals of a living conversation end after so long."""
    recompute_threshold_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 64
    """Prefill pulls only when at least so many tokens are missing there."""
    retention_budget: RetentionBudget = RetentionBudget()
    """How much KV finished turns may hold."""
    tuning: Tuning = Tuning()
    """Automatic choice of TTL and threshold."""


class KvTransfer(ApiModel):
    """Movement of KV cache between prefill and decode."""

    backend: TransportBackend = TransportBackend.AUTO
    """NIXL transport. Auto: LIBFABRIC on instance types with EFA, UCX on cpu."""
    allow_slow_transport: bool = False
    """True: UCX may stand on instance types with EFA, where it falls back to TCP."""
    kv_role: KvRole = KvRole.BOTH
    """Both: kv_both, which protects loads on prefill and hand-offs on decode. PerRole: producer and consumer."""
    lease_seconds: Annotated[int, Field(ge=6, le=3600)] = 30
    """How long prefill keeps a finished hand-off without a heartbeat; equal on both roles."""
    bidirectional: Bidirectional = Bidirectional()
    """Reuse of finished turns."""
