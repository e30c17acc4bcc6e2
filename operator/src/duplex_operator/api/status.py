"""status of a DisaggregatedServing: observations of bounded size; closed lists of condition types and reasons."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from duplex_operator.api.base import ApiModel

Count = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
Word = Annotated[str, Field(max_length=253)]
Text = Annotated[str, Field(max_length=32_768)]


class ConditionType(StrEnum):
    """Types of conditions. RECONCILING and STALLED are present only when True (kstatus)."""

    READY = "Ready"
    PREFILL_READY = "PrefillReady"
    DECODE_READY = "DecodeReady"
    ROUTER_READY = "RouterReady"
    TRANSPORT_VERIFIED = "TransportVerified"
    REUSE_EFFECTIVE = "ReuseEffective"
    PROGRESSING = "Progressing"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class Reason(StrEnum):
    """Reasons of conditions; the remedy stands in the message."""

    SERVING = "Serving"
    PODS_READY = "PodsReady"
    PODS_NOT_READY = "PodsNotReady"
    WAITING_FOR_PODS = "WaitingForPods"
    WAITING_FOR_CANARY = "WaitingForCanary"
    WAITING_FOR_ROUTER = "WaitingForRouter"
    CANARY_FAILED = "CanaryFailed"
    PROGRESSING = "Progressing"
    ROLLED_OUT = "RolledOut"
    SUSPENDED = "Suspended"
    UNKNOWN = "Unknown"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    IMAGE_PULL = "ImagePull"
    CRASH_LOOP = "CrashLoop"
    MODEL_LOADING = "ModelLoading"
    PREFLIGHT_FAILED = "PreflightFailed"
    FELL_BACK_TO_TCP = "FellBackToTCP"
    INCOMPATIBLE_ROLES = "IncompatibleRoles"
    ENGINE_TOO_OLD = "EngineTooOld"
    BUDGET_EXCEEDED = "BudgetExceeded"
    PREFIX_MISMATCH = "PrefixMismatch"
    STALE_HANDLES = "StaleHandles"
    PEER_STALE = "PeerStale"
    BELOW_THRESHOLD = "BelowThreshold"
    REUSE_OBSERVED = "ReuseObserved"
    REUSE_DISABLED = "ReuseDisabled"
    NO_TRAFFIC = "NoTraffic"
    TRANSPORT_OBSERVED = "TransportObserved"
    INVALID_SPEC = "InvalidSpec"
    FORBIDDEN = "Forbidden"
    REFUSED_BY_API_SERVER = "RefusedByAPIServer"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    ROLLOUT_PAUSED = "RolloutPaused"


class RoleStatus(ApiModel):
    """Pods of one part of the serving."""

    replicas: Count = 0
    """Pods wanted."""
    ready: Count = 0
    """Pods ready."""
    updated: Count = 0
    """Pods of the newest revision."""
    draining: Count = 0
    """Pods on their way out that still serve what they hold."""
    summary: Word | None = None
    """ready/replicas, for the table of kubectl."""


class TransportStatus(ApiModel):
    """Movement of KV between the roles."""

    backend: Word | None = None
    """NIXL transport."""
    network: Word | None = None
    """Short name for the table of kubectl: efa, tcp."""
    verified: bool | None = None
    """True: engines reported bytes moved over it."""
    bytes_moved: Count | None = None
    """Bytes moved, both directions."""


class ReuseStatus(ApiModel):
    """How well finished turns are reused."""

    turns: Count = 0
    """Turns served."""
    eligible: Count = 0
    """Turns that continue a conversation that decode held."""
    full: Count = 0
    """Eligible turns that reused all of it."""
    partial: Count = 0
    """Eligible turns that reused a part of it."""
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Eligible turns that reused something, in percent."""
    summary: Word | None = None
    """percent with its sign, for the table of kubectl."""
    saved_prefill_tokens: Count = 0
    """Prompt tokens that prefill did not compute."""
    rejected: Annotated[dict[str, Count], Field(max_length=32)] | None = None
    """Eligible turns that reused nothing, by reason."""


class RetentionStatus(ApiModel):
    """What decode holds of finished turns."""

    conversations: Count = 0
    """Conversations held."""
    tokens: Count = 0
    """Tokens held."""
    bytes: Count | None = None
    """Bytes held; absent where the bytes of a token are not known."""
    summary: Word | None = None
    """Amount held, for the table of kubectl."""
    budget_bytes: Count | None = None
    """Bytes that may be held."""


class EffectiveTuning(ApiModel):
    """TTL and threshold."""

    ttl_seconds: Count | None = None
    """TTL."""
    recompute_threshold_tokens: Count | None = None
    """Threshold."""


class TuningStatus(ApiModel):
    """TTL and threshold in force, and better ones."""

    effective: EffectiveTuning | None = None
    """In force."""
    recommended: EffectiveTuning | None = None
    """Better ones."""
    reason: Text | None = None
    """Why."""
    observed_turns: Count | None = None
    """Turns behind it."""


class EstimateStatus(ApiModel):
    """Arithmetic on the decode pool."""

    kv_bytes_per_token: Count | None = None
    """Bytes of KV cache per token."""
    decode_kv_tokens: Annotated[Count | None, Field(alias="decodeKVTokens")] = None
    """Tokens that all decode engines together can keep."""
    max_held_conversations: Count | None = None
    """Conversations of the longest context that fit in the budget."""


class HealingStatus(ApiModel):
    """Restarts of engines that could not reach each other; absent where there was none."""

    restarts: Count
    """Restarts in a row; the more there were, the longer the next one waits."""
    last_restart_time: Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
    """When the last one was."""
    pod: Word
    """The pod that was restarted last."""
    message: Text
    """Why."""


class RolloutStatus(ApiModel):
    """A change of the engines or of their number that is under way; absent where none is."""

    message: Text
    """Engines by revision and role, ready/wanted."""
    reached: Word
    """What has been reached, in brief; each progress changes it."""
    last_progress_time: Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
    """When `reached` last changed; rollout.progressDeadlineSeconds count from here."""


class Condition(ApiModel):
    """One observation of the serving (Kubernetes' metav1.Condition)."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """What is observed."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    observed_generation: Count | None = None
    """metadata.generation that it is about."""
    last_transition_time: Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
    """When `status` last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """Why, in one word of a closed list."""
    message: Text
    """Why and what to do, for people."""


class Status(ApiModel):
    """What is observed."""

    observed_generation: Count | None = None
    """metadata.generation that this status is about."""
    url: Word | None = None
    """Address of the API inside the cluster."""
    revision: Word | None = None
    """Revision that serves."""
    update_revision: Word | None = None
    """Revision that spec asks for."""
    prefill: RoleStatus | None = None
    """Prefill engines."""
    decode: RoleStatus | None = None
    """Decode engines."""
    router: RoleStatus | None = None
    """Router pods."""
    transport: TransportStatus | None = None
    """Movement of KV between the roles."""
    reuse: ReuseStatus | None = None
    """How well finished turns are reused."""
    retention: RetentionStatus | None = None
    """What decode holds of finished turns."""
    tuning: TuningStatus | None = None
    """TTL and threshold in force, and better ones."""
    estimate: EstimateStatus | None = None
    """Arithmetic on the decode pool."""
    healing: HealingStatus | None = None
    """Restarts of engines that could not reach each other."""
    rollout: RolloutStatus | None = None
    """A change that is under way."""
    conditions: (
        Annotated[
            list[Condition],
            Field(
                max_length=16,
                json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
            ),
        ]
        | None
    ) = None
    """Observations."""
