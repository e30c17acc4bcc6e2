"""spec.model and spec.engine: which weights are served, and by which vLLM."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from duplex_connector.contract import (
    CAPABILITIES,
    FEATURE_STREAMS_KV_PARAMS,
    OWNED_ENV,
    OWNED_FLAGS,
    Capability,
    ConnectorKind,
)
from duplex_operator.api.base import ATOMIC, LIST_MAP_BY_NAME, ApiModel, EnvVar, ObjectName, Rule, SecretKey, with_rules

_OTHER_SPELLINGS: Final = ("-tp", "-pp", "-dp", "--no-enable-prompt-tokens-details")
"""vLLM's short and negated spellings of flags that the operator owns."""

REFUSED_FLAGS: Final = (*OWNED_FLAGS, *_OTHER_SPELLINGS)
_SHORTEST_ABBREVIATION: Final = 4
"""vLLM's parser takes any unambiguous beginning of a flag for the flag; shorter ones than this are ambiguous."""

REFUSED_ENV: Final = tuple(sorted(OWNED_ENV))


def cel_list(values: Iterable[str]) -> str:
    """Return a CEL list of string literals."""
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"


def refused_flag(argument: str) -> bool:
    """Say whether an argument sets a flag that the operator owns.

    vLLM takes --a_b for --a-b, --a=b for --a b, --a.b for a key of a JSON flag, and an abbreviation for the flag.
    """
    name = argument.partition("=")[0].partition(".")[0].replace("_", "-")
    abbreviation = len(name) >= _SHORTEST_ABBREVIATION
    return any(flag == name or (abbreviation and flag.startswith(name)) for flag in REFUSED_FLAGS)


ARGS_RULE: Final = Rule(
    # The expression does what refused_flag does.
    "!has(self.args) || !self.args.map(a, a.split('=')[0].split('.')[0].replace('_', '-')).exists(n,"
    f" {cel_list(REFUSED_FLAGS)}.exists(f, f == n || (n.size() >= {_SHORTEST_ABBREVIATION} && f.startsWith(n))))",
    "args: the operator writes these flags itself: "
    + ", ".join(REFUSED_FLAGS)
    + ". Remove them and set the field of spec that stands for each (model, engine, prefill, decode, kvTransfer)",
)
CONTEXT_PARALLEL_FLAGS: Final = ("--prefill-context-parallel-size", "-pcp")
CONTEXT_PARALLEL_RULE: Final = Rule(
    f"!has(self.args) || !self.args.exists(a, a.split('=')[0].replace('_', '-') in {cel_list(CONTEXT_PARALLEL_FLAGS)})",
    "args: prefill context parallelism cannot be had together with pulls from decode (vLLM's connector refuses it): "
    "remove --prefill-context-parallel-size and raise tensorParallelSize",
)
ENV_RULE: Final = Rule(
    f"!has(self.env) || !self.env.exists(e, e.name in {cel_list(REFUSED_ENV)})",
    "env: the operator writes these variables itself: " + ", ".join(REFUSED_ENV) + ". Remove them",
)

Arguments = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=2048)]],
    Field(max_length=64, json_schema_extra=ATOMIC),
]
"""Command-line arguments, in order."""

Environment = Annotated[list[EnvVar], Field(max_length=64, json_schema_extra=LIST_MAP_BY_NAME)]
"""Environment variables, by name."""

_PATH = r"^/[A-Za-z0-9._/@+-]+$"


class HubSource(ApiModel):
    """Weights from the model hub."""

    token_secret_ref: SecretKey | None = None
    """Secret with an access token, for gated models; becomes HF_TOKEN."""


class VolumeClaimSource(ApiModel):
    """Weights on a volume claim, mounted read-only."""

    claim_name: ObjectName
    """Name of the PersistentVolumeClaim; both roles mount it, so it must allow many readers."""
    path: Annotated[str, Field(max_length=1024, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._/@+-]*$")] | None = None
    """Folder of the model inside the volume, relative; left out: the volume's root."""


class ObjectStoreSource(ApiModel):
    """Weights in S3, streamed into memory by run:ai's streamer."""

    uri: Annotated[str, Field(max_length=1024, pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+$")]
    """Address of the model's folder: s3://bucket/prefix."""
    service_account_name: ObjectName | None = None
    """ServiceAccount whose role may read the bucket (IRSA or Pod Identity)."""


class HostPathSource(ApiModel):
    """Weights in a folder of every node, mounted read-only."""

    path: Annotated[str, Field(max_length=1024, pattern=_PATH)]
    """Absolute path of the model's folder on the node."""


class ModelSource(ApiModel):
    """Where the weights come from."""

    model_config = with_rules(
        Rule(
            "[has(self.hub), has(self.pvc), has(self.s3), has(self.hostPath)].filter(x, x).size() == 1",
            "source: name exactly one of hub, pvc, s3, hostPath",
        )
    )

    hub: HubSource | None = None
    """The model hub, by model.id."""
    pvc: VolumeClaimSource | None = None
    """A volume claim."""
    s3: ObjectStoreSource | None = None
    """An S3 bucket."""
    host_path: HostPathSource | None = None
    """A folder on the nodes."""


class Model(ApiModel):
    """The model that is served."""

    id: Annotated[str, Field(min_length=1, max_length=512)]
    """Hub id, or any name where `source` gives the place."""
    served_name: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Name of the model in the API; left out: `id`."""
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Branch, tag or commit at the hub (`--revision`)."""
    max_length: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Longest context in tokens (`--max-model-len`); left out: what the model's config says."""
    source: ModelSource | None = None
    """Where the weights come from; left out: the hub, without a token."""


BlockSize = Annotated[int, Field(json_schema_extra={"enum": [1, 8, 16, 32, 64, 128, 256]}, ge=1, le=256)]
"""Sizes that vLLM has kernels for."""


class EngineFeature(StrEnum):
    """What a patched image can do beyond its version."""

    STREAMS_KV_PARAMS = FEATURE_STREAMS_KV_PARAMS


def release_lines(rows: Iterable[Capability]) -> list[str]:
    """Return the release lines of some rows of a capability table, such as `0.33`."""
    return [f"{row.version[0]}.{row.version[1]}" for row in rows]


def version_in(lines: Iterable[str]) -> str:
    """Return CEL, on spec, that holds where the engine's version, given or in the tag, is of one of these lines."""
    pattern = "(" + "|".join(line.replace(".", "[.]") for line in lines) + ")"
    return (
        f"(has(self.engine.version) ? self.engine.version.matches('^v?{pattern}([.]|$)')"
        f" : self.engine.image.matches(':v?{pattern}([.][0-9]+)?(@sha256:[0-9a-f]+)?$'))"
    )


TESTED_LINES: Final = release_lines(row for row in CAPABILITIES if row.guarded_tested)
"""Release lines on which the guarded connector has run."""


class Engine(ApiModel):
    """The vLLM that both roles run."""

    model_config = with_rules(
        Rule(
            "has(self.version) || self.image.matches(':v?[0-9]+[.][0-9]+([.][0-9]+)?(@sha256:[0-9a-f]+)?$')",
            "version: the image's tag is not a plain version: "
            "set engine.version to the vLLM release inside, such as 0.33.0",
        ),
        ARGS_RULE,
        CONTEXT_PARALLEL_RULE,
        ENV_RULE,
    )

    image: Annotated[str, Field(min_length=1, max_length=512)]
    """Image of both roles; one, because prefill and decode must run the same vLLM."""
    version: (
        Annotated[str, Field(max_length=64, pattern=r"^v?[0-9]+\.[0-9]+(\.[0-9]+)*([-+.][0-9A-Za-z.+-]+)?$")] | None
    ) = None
    """vLLM release in the image; left out: the image's tag. On Neuron, the release of vllm-neuron."""
    features: (
        Annotated[list[EngineFeature], Field(max_length=8, json_schema_extra={"x-kubernetes-list-type": "set"})] | None
    ) = None
    """What the image can do beyond its version, such as a plugin that streams the transfer parameters."""
    args: Arguments | None = None
    """More vLLM flags for both roles."""
    env: Environment | None = None
    """More environment variables for both roles."""
    block_size: BlockSize | None = None
    """Tokens in a KV block, equal on both roles; left out: 16 on GPUs, 32 on Neuron and CPU."""
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = "auto"
    """Type of weights and activations (`--dtype`)."""
    kv_cache_dtype: Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[a-z0-9_]+$")] = "auto"
    """Type of the KV cache (`--kv-cache-dtype`)."""
    whole_windows: bool = False
    """True: sliding-window layers keep all their blocks, so that partial reuse works, at a price in memory."""
    connector: ConnectorKind | None = None
    """Guarded: the connector that proves each pull; Stock: vLLM's own. Left out: Guarded, and Stock on Neuron."""
