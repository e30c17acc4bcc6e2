"""Real vLLM on CPU as a provider of engines: pods that move KV between their addresses with the real NixlConnector.

An engine takes one to three GiB and half a minute of an idle core to start, so one variant's engines run at a time, and
an engine that the next variant needs just so goes on.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from duplex_connector.contract import ConnectorKind, Role
from duplex_lab.engine import MODELS_IN_POD

from .checks import is_alive
from .pods import EnginePod, EnginePods, PodPlan
from .simulator import transfer_config
from .turns import request
from .variants import ADAPTER, MODEL, Facts, Family, Running, Variant

_BLOCK_SIZE: Final = 32
_BLOCKS: Final = 512
"""Of every pool: the longest check needs 50. vLLM would take a GiB, which it also has to fill and register."""
_LENGTH: Final = 4096
_SMALL_BLOCKS: Final = 48
_PLAIN: Final = "plain"

_FLAGS: Final = (
    "--dtype",
    "float32",  # a pair then agrees with a single engine to the token
    "--enforce-eager",
    "--max-num-seqs",
    "4",
    "--seed",
    "0",
    "--block-size",
    str(_BLOCK_SIZE),
    "--enable-prompt-tokens-details",
    "--served-model-name",
    MODEL,
)


@dataclass
class RealSet:
    """One variant's engines."""

    pods: EnginePods
    engines: dict[str, EnginePod]
    facts: Facts

    @property
    def prefill(self) -> str:
        """Return the prefill engine's URL."""
        return self.engines[Role.PREFILL].url

    @property
    def decode(self) -> str:
        """Return the decode engine's URL."""
        return self.engines[Role.DECODE].url

    @property
    def plain(self) -> str:
        """Return the plain engine's URL."""
        return self.engines[_PLAIN].url

    def kill(self, role: Role) -> None:
        """End one engine without warning."""
        self.pods.kill(self.engines[role])

    def close(self) -> None:
        """Do nothing: who started them knows which of them go on."""


class RealEngines:
    """Starts real engines; `logs` gets a file per pod. DUPLEX_ENGINE_OVERLAY=1 runs vLLM 0.33.0's Python code."""

    name = "vllm"

    def __init__(self, logs: Path) -> None:
        self._pods = EnginePods(logs / self.name, overlay=os.environ.get("DUPLEX_ENGINE_OVERLAY") == "1")
        self._running: dict[str, EnginePod] = {}

    def __enter__(self) -> Self:
        self._pods.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._pods.__exit__(*error)

    def start(self, variant: Variant) -> Running:
        """Return the variant's engines, ready."""
        plans = {role.value: _role_plan(variant, role) for role in Role}
        plans[_PLAIN] = PodPlan(tuple(_model_flags(variant, _BLOCKS, _LENGTH)), guarded=False)
        stale = {name: pod for name, pod in self._running.items() if pod.plan != plans[name] or not is_alive(pod.url)}
        self._pods.stop(stale.values())
        kept = {name: pod for name, pod in self._running.items() if name not in stale}
        missing = {name: plan for name, plan in plans.items() if name not in kept}
        self._running = kept | self._pods.start(missing, str(variant))
        self._pods.await_health(self._running.values())
        return RealSet(self._pods, self._running, _facts(self._running[_PLAIN].url))


def _facts(plain: str) -> Facts:
    return Facts(
        block_size=_BLOCK_SIZE,
        tokens=range(300, 4096),
        marks=False,
        answer_seconds=180.0,
        hang_seconds=30.0,
        streams_params=True,
        small_prefill_blocks=_SMALL_BLOCKS,
        version=str(request(plain, "/version").body["version"]),
    )


def _model_flags(variant: Variant, blocks: int, most: int) -> list[str]:
    name = "window" if variant.family is Family.WINDOW else "bpe" if variant.lossy else "tiny"
    flags = [f"{MODELS_IN_POD}/{name}", *_FLAGS, "--num-gpu-blocks-override", str(blocks), "--max-model-len", str(most)]
    if variant.adapters:
        modules = f"{ADAPTER}={MODELS_IN_POD}/adapter"
        flags += ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", modules]
    return flags


def _role_plan(variant: Variant, role: Role) -> PodPlan:
    prefill = role is Role.PREFILL
    small = prefill and variant.small_prefill
    flags = _model_flags(variant, _SMALL_BLOCKS, 1400) if small else _model_flags(variant, _BLOCKS, _LENGTH)
    flags += ["--kv-transfer-config", json.dumps(transfer_config(variant, role))]
    if prefill and not variant.prefill_caching:
        flags.append("--no-enable-prefix-caching")
    if small:
        # The last one admits a load that has room although the rest of its prompt has none yet.
        flags += ["--max-num-batched-tokens", "64", "--no-scheduler-reserve-full-isl"]
    return PodPlan(tuple(flags), guarded=variant.connector is ConnectorKind.GUARDED)
