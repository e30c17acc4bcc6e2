"""KV bytes per token from a model's config.json, and what they mean for the decode pool.

Attention: 2 x layers x KV heads x head size x bytes. Multi-head latent attention: layers x (latent + rotary) x bytes,
kept whole by every rank; with an indexer for sparse attention, its keys beside (vLLM's DeepseekV32 layout: 128 bytes of
fp8 and 4 of scale per layer). Layers with a window, and state-space layers, stop growing: they are counted apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FP8_MLA_BYTES: Final = 656
"""Bytes per token and layer of vLLM's fp8_ds_mla: 512 of fp8, 16 of scales, 128 of rotary part in bf16."""

_INDEXER_SCALE_BYTES: Final = 4
_LATENT_NAMES: Final = ("kv_lora_rank", "qk_rope_head_dim")
_STATE_LAYERS: Final = ("linear_attention", "mamba", "ssm", "recurrent")
_WINDOW_LAYERS: Final = ("sliding_attention", "chunked_attention", "local_attention")
_FULL: Final = "full_attention"


class ConfigError(ValueError):
    """A config.json does not say what is needed; the text names what is missing."""


@dataclass(frozen=True)
class KvShape:
    """How much KV a model keeps. Bytes are for one token on one copy of the model, before tensor parallelism.

    `growing`: of layers that keep every token. `windowed`: of layers that keep the last `window` tokens only.
    `heads`: KV heads that tensor parallelism can split; 0 where every rank keeps all (latent attention).
    `states`: the model has layers whose state does not grow with tokens.
    """

    growing: int
    windowed: int
    window: int
    heads: int
    states: bool
    weights_bytes: int | None
    longest: int | None

    def bytes_per_token(self, tensor_parallel_size: int) -> int:
        """Return the bytes of a token in layers that grow, over all ranks.

        Ranks that outnumber the heads keep copies of them.
        """
        if not self.heads:
            return self.growing * tensor_parallel_size
        return self.growing * max(1, tensor_parallel_size // self.heads)

    def whole_or_nothing(self) -> bool:
        """Tell whether a changed history is reused whole or not at all."""
        return bool(self.windowed) or self.states


@dataclass(frozen=True)
class ModelFiles:
    """What a model's folder says: its config.json, and the bytes of its weights where they are there."""

    config: Mapping[str, Any]
    weights_bytes: int | None


def read_model(source: Path) -> ModelFiles:
    """Read a model's folder, or its config.json. Raises ConfigError, OSError."""
    folder = source if source.is_dir() else source.parent
    path = source / "config.json" if source.is_dir() else source
    try:
        config = json.loads(path.read_text())
    except ValueError as problem:
        raise ConfigError(f"{path} is not JSON: {problem}") from problem
    if not isinstance(config, dict):
        raise ConfigError(f"{path} must hold an object")
    text = config.get("text_config")
    return ModelFiles({**config, **text} if isinstance(text, dict) else config, _weights(folder))


def kv_shape(model: ModelFiles, *, kv_cache_dtype: str = "auto", dtype: str = "auto") -> KvShape:
    """Return the shape of a model that is served with these types. Raises ConfigError."""
    config = model.config
    layers = _number(config, "num_hidden_layers")
    width = _width(config, kv_cache_dtype=kv_cache_dtype, dtype=dtype)
    longest = config.get("max_position_embeddings")
    kinds = _layer_kinds(config, layers)
    if config.get("kv_lora_rank"):
        per_layer, heads = _latent_bytes(config, width), 0
    else:
        heads = int(config.get("num_key_value_heads") or _number(config, "num_attention_heads"))
        per_layer = 2 * heads * _head_size(config) * width
    return KvShape(
        growing=per_layer * kinds.count(_FULL),
        windowed=per_layer * sum(kind in _WINDOW_LAYERS for kind in kinds),
        window=int(config.get("sliding_window") or config.get("attention_chunk_size") or 0),
        heads=heads,
        states=any(kind in _STATE_LAYERS for kind in kinds),
        weights_bytes=model.weights_bytes,
        longest=int(longest) if isinstance(longest, int) else None,
    )


def _width(config: Mapping[str, Any], *, kv_cache_dtype: str, dtype: str) -> int:
    """Return the bytes of one number in the KV cache, by the flags, else by the type of the weights."""
    if kv_cache_dtype.startswith(("fp8", "int8")):
        return 1
    kind = dtype if dtype != "auto" else config.get("dtype") or config.get("torch_dtype")
    return 4 if kind in ("float32", "float") else 2


def _latent_bytes(config: Mapping[str, Any], width: int) -> int:
    latent = FP8_MLA_BYTES if width == 1 else width * sum(_number(config, name) for name in _LATENT_NAMES)
    indexer = _number(config, "index_head_dim") + _INDEXER_SCALE_BYTES if config.get("index_topk") else 0
    return latent + indexer


def _head_size(config: Mapping[str, Any]) -> int:
    size = config.get("head_dim")
    return int(size) if size else _number(config, "hidden_size") // _number(config, "num_attention_heads")


def _layer_kinds(config: Mapping[str, Any], layers: int) -> list[str]:
    """Return the kind of every layer. Models that mix kinds name them; else a window holds for all that use it."""
    named = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(named, list):
        return [str(kind) if kind in (*_WINDOW_LAYERS, *_STATE_LAYERS) else _FULL for kind in named]
    pattern = config.get("sliding_window_pattern")
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        if isinstance(pattern, int) and pattern > 1:
            return [_FULL if (layer + 1) % pattern == 0 else _WINDOW_LAYERS[0] for layer in range(layers)]
        full = int(config.get("max_window_layers") or 0) if "use_sliding_window" in config else 0
        return [_FULL] * min(full, layers) + [_WINDOW_LAYERS[0]] * max(0, layers - full)
    return [_FULL] * layers


def _number(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value <= 0:
        raise ConfigError(f"the model's config has no {name}, which the size of its KV depends on")
    return value


def _weights(folder: Path) -> int | None:
    """Return the bytes of the weights, from safetensors' index or the files themselves."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        size = json.loads(index.read_text()).get("metadata", {}).get("total_size")
        return int(size) if size else None
    files = list(folder.glob("*.safetensors"))
    return sum(path.stat().st_size for path in files) or None
