"""Every name that more than one part of Duplex spells: wire keys, labels, ports, env, flags, and what each vLLM can do.

Look-up only: this module holds no logic beyond finding a row of a table, and imports nothing outside the standard
library, because it also runs inside engine images.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

GROUP: Final = "duplex.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "DisaggregatedServing"
PLURAL: Final = "disaggregatedservings"
ROLE_KIND: Final = "ServingRole"
ROLE_PLURAL: Final = "servingroles"


class Role(StrEnum):
    """What an engine does in a turn."""

    PREFILL = "prefill"
    DECODE = "decode"


ROUTER: Final = "router"


class Label:
    """Label keys on every child of a serving; selectors use only NAME, INSTANCE, COMPONENT and REVISION."""

    NAME: Final = "app.kubernetes.io/name"
    INSTANCE: Final = "app.kubernetes.io/instance"
    COMPONENT: Final = "app.kubernetes.io/component"
    PART_OF: Final = "app.kubernetes.io/part-of"
    MANAGED_BY: Final = "app.kubernetes.io/managed-by"
    APP_VERSION: Final = "app.kubernetes.io/version"
    SERVING: Final = "duplex.dev/serving"
    ROLE: Final = "duplex.dev/role"
    REVISION: Final = "duplex.dev/revision"


class Annotation:
    """Annotation keys on engine pods, but for the first, which is on all that a serving owns."""

    APPLIED: Final = "duplex.dev/applied"
    """Digest of what the operator applied last: one that starts anew leaves alone what stands as it was applied."""
    DRAINING: Final = "duplex.dev/draining-since"
    """When the operator began to take the engine out of use."""
    DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
    """Kubernetes' own: ReplicaSets delete the pods with the lowest first."""


PART_OF: Final = "duplex"
MANAGED_BY: Final = "duplex-operator"


class Port:
    """TCP ports. The side channel takes one port per data-parallel rank from SIDE_CHANNEL upwards."""

    API: Final = 8000
    SIDE_CHANNEL: Final = 5600
    ADMIN: Final = 9100


class Env:
    """Environment variables that the operator owns in engine pods."""

    SIDE_CHANNEL_HOST: Final = "VLLM_NIXL_SIDE_CHANNEL_HOST"
    SIDE_CHANNEL_PORT: Final = "VLLM_NIXL_SIDE_CHANNEL_PORT"
    HOST_IP: Final = "VLLM_HOST_IP"
    PYTHON_PATH: Final = "PYTHONPATH"
    NEURON_BIDIRECTIONAL: Final = "VLLM_NEURON_BIDIRECTIONAL_KV"
    FABRIC_PROVIDER: Final = "FI_PROVIDER"


OWNED_ENV: Final = frozenset(
    {
        Env.SIDE_CHANNEL_HOST,
        Env.SIDE_CHANNEL_PORT,
        Env.HOST_IP,
        Env.PYTHON_PATH,
        Env.NEURON_BIDIRECTIONAL,
        # Without `efa` here libfabric falls back to TCP in silence.
        Env.FABRIC_PROVIDER,
    }
)

CONNECTOR_MOUNT: Final = "/duplex"
"""Where the init container puts the duplex_connector package; on the engine's PYTHONPATH."""

PREFLIGHT_MODULE: Final = "duplex_connector.preflight"
"""What an init container with the engine's image and devices runs before the engine."""

LEAVING_MODULE: Final = "duplex_connector.leaving"
"""What engine pods run as their preStop hook."""

PREFLIGHT_PASSED: Final = "preflight: the engine can start"
"""Its last line where it found nothing wrong; status tells a fabric as verified only where every engine has it."""

PREFLIGHT_OVER_TCP: Final = "NIXL would move KV over TCP"
"""What its last line holds where the fabric would not be used."""

CONNECTOR_MODULE: Final = "duplex_connector.nixl"
"""vLLM's kv_connector_module_path for the guarded connector."""

CONNECTOR_CLASS: Final = "NixlConnector"
"""vLLM keys behaviour on this class name (vllm/config/vllm.py, 0.33.0), so the guarded class bears it too."""

OWNED_FLAGS: Final = (
    "--kv-transfer-config",
    "--host",
    "--port",
    "--served-model-name",
    "--model",
    "--revision",
    "--max-model-len",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--block-size",
    "--dtype",
    "--kv-cache-dtype",
    "--enable-prompt-tokens-details",
    "--shutdown-timeout",
    "--disable-hybrid-kv-cache-manager",
)
"""Engine flags that the operator writes itself; in `args` they are refused by name."""


class ConnectorKind(StrEnum):
    """Which NixlConnector runs in the engines."""

    GUARDED = "Guarded"
    STOCK = "Stock"


class Backend(StrEnum):
    """NIXL transport plugins that the operator renders."""

    LIBFABRIC = "LIBFABRIC"
    UCX = "UCX"


FEATURE_STREAMS_KV_PARAMS: Final = "StreamsKVParams"

HANDLE_EXPIRY_MARGIN_SECONDS: Final = 5.0
"""A reader declines a pull within this many seconds of the deadline (_KV_BLOCKS_EXPIRY_SAFETY_MARGIN, vLLM >= 0.26)."""

LATE_READ_MARGIN_SECONDS: Final = 1.0
"""What a guarded reader has read later than this before the deadline it does not use: it knows the holder's clock to a
handshake's round trip, and clocks of one cluster drift by less."""

GUARDED_TTL_SECONDS: Final = 60
"""decoder_kv_blocks_ttl of guarded engines: only for requests that carry no ttl of their own."""

GUARDED_THRESHOLD_TOKENS: Final = 0
"""kv_recompute_threshold of guarded engines: the request's own threshold decides."""


class Params:
    """Keys of vLLM's kv_transfer_params (0.33.0, nixl/pull_scheduler.py)."""

    FIELD: Final = "kv_transfer_params"
    ENCODER_FIELD: Final = "ec_transfer_params"
    PROMPT_TOKEN_IDS: Final = "prompt_token_ids"  # noqa: S105 - tokens of text, no secret
    DO_REMOTE_PREFILL: Final = "do_remote_prefill"
    DO_REMOTE_DECODE: Final = "do_remote_decode"
    BLOCK_IDS: Final = "remote_block_ids"
    ENGINE_ID: Final = "remote_engine_id"
    REQUEST_ID: Final = "remote_request_id"
    HOST: Final = "remote_host"
    PORT: Final = "remote_port"
    TP_SIZE: Final = "tp_size"
    DCP_SIZE: Final = "dcp_size"
    PP_SIZE: Final = "pp_size"
    REGISTRATION_GENERATION: Final = "remote_registration_generation"
    NUM_TOKENS: Final = "remote_num_tokens"
    EXPIRY_TIME: Final = "remote_blocks_expiry_time"
    CACHED_TOKENS: Final = "remote_prefill_cached_tokens"
    DUPLEX: Final = "duplex"


class Duplex:
    """Keys of our own object `kv_transfer_params["duplex"]`. A stock vLLM ignores it.

    In a handle or hand-off, written by a guarded engine: STEP, MARKS, COUNT, LAST, GROUPS, BLOCKS (see proof.py).
    Router to D, with the decode leg: TTL (seconds the finished turn's blocks are held; 0 = not at all).
    Router to P, with a handle: THRESHOLD (tokens), KEEP (true: the pull does not consume the hold).
    Router to D, in a request that vLLM rejects before admission: RENEW {request id: seconds from now; 0 releases}.
    D to router, in its handle: REASON, where it could not read the hand-off and computed instead.
    P to router, in its answer: PROVED, PULLED, LOCAL, COMPUTED (tokens of this prompt), OUTCOME, REASON.
    """

    STEP: Final = "step"
    MARKS: Final = "marks"
    COUNT: Final = "count"
    LAST: Final = "last"
    GROUPS: Final = "groups"
    BLOCKS: Final = "blocks"
    TTL: Final = "ttl"
    THRESHOLD: Final = "threshold"
    KEEP: Final = "keep"
    RENEW: Final = "renew"
    PROVED: Final = "proved"
    PULLED: Final = "pulled"
    LOCAL: Final = "local"
    COMPUTED: Final = "computed"
    OUTCOME: Final = "outcome"
    REASON: Final = "reason"


LEASE_MODEL: Final = "duplex-lease"
"""A model name that no engine serves: a request for it is rejected before admission, which carries lease messages."""

KEEP_PREFIX: Final = "duplex-keep:"
"""What a guarded P puts before the request id in the completion notification of a pull that must not consume."""


class Header:
    """HTTP header names, lower case."""

    REUSE: Final = "x-duplex-reuse"
    TOKENS: Final = "x-duplex-tokens"
    REQUEST_ID: Final = "x-request-id"
    SESSION_ID: Final = "x-session-id"
    TENANT: Final = "x-duplex-tenant"


SESSION_FIELDS: Final = ("session_id", "conversation_id")
"""Body fields that name a conversation; they only add affinity."""

FLEET_KEY: Final = "fleet.json"
"""Key of the fleet document in the ConfigMap `<serving>-fleet`."""


class Metric:
    """vLLM's and the guarded connector's metric names that other parts read (without `_total`)."""

    KV_USAGE: Final = "vllm:kv_cache_usage_perc"
    REQUESTS_RUNNING: Final = "vllm:num_requests_running"
    REQUESTS_WAITING: Final = "vllm:num_requests_waiting"
    PROCESS_START: Final = "process_start_time_seconds"
    PROMPT_TOKENS_BY_SOURCE: Final = "vllm:prompt_tokens_by_source"
    NIXL_BYTES: Final = "vllm:nixl_bytes_transferred"
    NIXL_FAILED: Final = "vllm:nixl_num_failed_transfers"
    NIXL_EXPIRED: Final = "vllm:nixl_num_kv_expired_reqs"
    DUPLEX_PULLS: Final = "vllm:duplex_pulls"
    DUPLEX_PULLED_TOKENS: Final = "vllm:duplex_pulled_tokens"
    DUPLEX_PROVED_TOKENS: Final = "vllm:duplex_proved_tokens"
    DUPLEX_HOLDS: Final = "vllm:duplex_holds"
    DUPLEX_HELD_TOKENS: Final = "vllm:duplex_held_tokens"
    DUPLEX_KV_BYTES: Final = "vllm:duplex_kv_bytes_per_token"
    DUPLEX_RENEWALS: Final = "vllm:duplex_hold_renewals"
    DUPLEX_RELEASES: Final = "vllm:duplex_hold_releases"
    DUPLEX_LAPSES: Final = "vllm:duplex_hold_lapses"


@dataclass(frozen=True)
class Capability:
    """What one vLLM release line can do, by its source text.

    `bidirectional`: has the feature. `ttl_flag`: reads decoder_kv_blocks_ttl. `expiry_guard`: declines expired reads;
    without it an expired read answers wrongly with 200. `streams_params`: streamed answers carry kv_transfer_params.
    `recovers_peers`: mends what it knows of a peer that restarted (vllm#55471); before, its transfers go on failing.
    `guarded_tested`: the guarded connector has run on it. `minimum_nixl`: the NIXL release it pins or needs.
    """

    version: tuple[int, int]
    bidirectional: bool
    ttl_flag: bool
    expiry_guard: bool
    streams_params: bool
    recovers_peers: bool
    guarded_tested: bool
    minimum_nixl: str


def _row(minor: int, nixl: str, *, guarded: bool = False) -> Capability:
    return Capability(
        version=(0, minor),
        bidirectional=minor >= 21,  # noqa: PLR2004 - the release that brought the feature
        ttl_flag=minor >= 22,  # noqa: PLR2004 - the release that split the ttl from the abort timeout
        expiry_guard=minor >= 26,  # noqa: PLR2004 - vllm#47021
        streams_params=minor >= 33,  # noqa: PLR2004 - vllm#40186
        recovers_peers=minor >= 32,  # noqa: PLR2004 - vllm#55471
        guarded_tested=guarded,
        minimum_nixl=nixl,
    )


CAPABILITIES: Final = (
    _row(21, "1.1.0"),
    _row(22, "1.1.0"),
    _row(23, "1.1.0"),
    _row(24, "1.2.0"),
    _row(25, "1.3.0"),
    _row(26, "1.3.1"),
    _row(27, "1.3.1"),
    _row(28, "1.3.2"),
    _row(29, "1.3.2"),
    _row(30, "1.4.1"),
    _row(31, "1.4.1"),
    _row(32, "1.5.0", guarded=True),
    _row(33, "1.5.0", guarded=True),
)

NEURON_CAPABILITIES: Final = (
    Capability((0, 21), False, False, False, False, False, False, "1.1.0"),
    Capability((0, 24), True, True, False, False, False, False, "1.2.0"),
)
"""The same for vllm-neuron, numbered after the vLLM that it plugs into (Neuron SDK 2.31.1 and 2.32.0)."""

_VERSION = re.compile(r"^v?(\d+)\.(\d+)(?:\.\d+)?")


def parse_version(text: str) -> tuple[int, int] | None:
    """Return (major, minor) of a vLLM version or image tag such as `v0.33.0`; None where it is not a plain version."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


def capability(version: str, *, neuron: bool = False) -> Capability | None:
    """Return the row for a vLLM (or vllm-neuron) version, or None where the table has no such release."""
    wanted = parse_version(version)
    return next((row for row in (NEURON_CAPABILITIES if neuron else CAPABILITIES) if row.version == wanted), None)
