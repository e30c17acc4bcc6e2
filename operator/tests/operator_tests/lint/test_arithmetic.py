"""KV bytes per token of published models, and what lint makes of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from duplex_operator.lint import ConfigError, ModelFiles, kv_shape, lint_object, read_model
from operator_tests.api.objects import serving_object

QWEN3_32B: dict[str, Any] = {
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 5120,
    "max_position_embeddings": 40_960,
    "torch_dtype": "bfloat16",
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 64,
}
LLAMA_70B: dict[str, Any] = {
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
}
DEEPSEEK_V3: dict[str, Any] = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
GLM_5: dict[str, Any] = {
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_topk": 2048,
    "index_head_dim": 128,
}
GPT_OSS: dict[str, Any] = {
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}


@pytest.mark.parametrize(
    ("config", "bf16", "fp8"),
    [
        (QWEN3_32B, 262_144, 131_072),
        (LLAMA_70B, 327_680, 163_840),
        (DEEPSEEK_V3, 70_272, 40_016),
        (GLM_5, 100_152, 61_464),
        (GPT_OSS, 36_864, 18_432),
    ],
    ids=["qwen3-32b", "llama-70b", "deepseek-v3", "glm-5", "gpt-oss"],
)
def test_growing_bytes_of_published_models(config: dict[str, Any], bf16: int, fp8: int) -> None:
    model = ModelFiles(config, None)
    assert kv_shape(model).growing == bf16
    assert kv_shape(model, kv_cache_dtype="fp8").growing == fp8


def test_windows_are_counted_apart() -> None:
    shape = kv_shape(ModelFiles(GPT_OSS, None))
    assert (shape.windowed, shape.window, shape.whole_or_nothing()) == (36_864, 128, True)


@pytest.mark.parametrize(("pattern", "growing"), [(6, 1), (2, 3)])
def test_a_pattern_of_windows(pattern: int, growing: int) -> None:
    config = {**LLAMA_70B, "num_hidden_layers": 6, "sliding_window": 512, "sliding_window_pattern": pattern}
    per_layer = 2 * 8 * 128 * 2
    assert kv_shape(ModelFiles(config, None)).growing == growing * per_layer


def test_state_space_layers_keep_no_tokens() -> None:
    config = {**LLAMA_70B, "num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
    shape = kv_shape(ModelFiles(config, None))
    assert (shape.growing, shape.states, shape.whole_or_nothing()) == (2 * 8 * 128 * 2, True, True)


def test_ranks_repeat_heads_they_cannot_split_and_latents_always() -> None:
    heads, latent = kv_shape(ModelFiles(QWEN3_32B, None)), kv_shape(ModelFiles(DEEPSEEK_V3, None))
    assert [heads.bytes_per_token(size) for size in (1, 8, 16)] == [262_144, 262_144, 524_288]
    assert [latent.bytes_per_token(size) for size in (1, 8)] == [70_272, 8 * 70_272]


def test_float32_is_twice_as_wide() -> None:
    assert kv_shape(ModelFiles({**LLAMA_70B, "torch_dtype": "float32"}, None)).growing == 2 * 327_680
    assert kv_shape(ModelFiles({**LLAMA_70B, "torch_dtype": "float32"}, None), dtype="bfloat16").growing == 327_680


@pytest.mark.parametrize("missing", ["num_hidden_layers", "num_attention_heads"])
def test_a_config_that_says_too_little(missing: str) -> None:
    config = {name: value for name, value in LLAMA_70B.items() if name not in (missing, "num_key_value_heads")}
    with pytest.raises(ConfigError, match=missing):
        kv_shape(ModelFiles(config, None))


def test_a_folder_with_an_index_is_read_and_a_nested_text_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {}, "text_config": LLAMA_70B}))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 141_000_000_000}}))
    model = read_model(tmp_path)
    assert (kv_shape(model).growing, model.weights_bytes) == (327_680, 141_000_000_000)
    assert read_model(tmp_path / "config.json").weights_bytes == 141_000_000_000


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError):
        read_model(tmp_path)


def lines(config: dict[str, Any], weights: int | None, **change: Any) -> str:
    return "\n".join(str(found) for found in lint_object(serving_object(**change), ModelFiles(config, weights)))


def test_the_arithmetic_of_a_pool_on_p5en() -> None:
    said = lines(QWEN3_32B, 61 * 1024**3)
    # 8 x 141 GiB x 0.9 less the weights; a token takes 256 KiB; half of it for finished turns; 40,960 tokens each.
    assert "note: spec.model: a token takes 262,144 bytes of KV on 8 rank(s)" in said
    assert "keeps about 3,908," in said
    assert "47 conversation(s) of 40,960 tokens per pod" in said


def test_a_budget_below_one_conversation_is_a_warning() -> None:
    said = lines(QWEN3_32B, 61 * 1024**3, decode={"acceleratorsPerPod": 1}, prefill={"acceleratorsPerPod": 1})
    assert "warning: spec.kvTransfer.bidirectional.retentionBudget" not in said
    short = {"kvTransfer": {"bidirectional": {"retentionBudget": {"percentOfKV": 10}}}}
    said = lines(QWEN3_32B, 61 * 1024**3, decode={"acceleratorsPerPod": 1}, prefill={"acceleratorsPerPod": 1}, **short)
    assert "less than one conversation of 40,960 tokens" in said


def test_weights_that_do_not_fit_are_a_warning() -> None:
    said = lines(QWEN3_32B, 200 * 1024**3, decode={"acceleratorsPerPod": 1}, prefill={"acceleratorsPerPod": 1})
    assert "leave no room for KV" in said


def test_a_share_of_memory_from_the_arguments_counts() -> None:
    whole = lines(QWEN3_32B, 61 * 1024**3, engine={"args": ["--gpu-memory-utilization", "0.45"]})
    assert "keeps about 1,8" in whole
    assert whole == lines(QWEN3_32B, 61 * 1024**3, engine={"args": ["--gpu-memory-utilization=0.45"]})


def test_sizes_that_repeat_heads_differently_are_a_warning() -> None:
    said = lines(QWEN3_32B, None, prefill={"acceleratorsPerPod": 4}, decode={"acceleratorsPerPod": 8})
    assert "cannot read repeated heads" not in said
    few = {**QWEN3_32B, "num_key_value_heads": 4}
    said = lines(few, None, prefill={"acceleratorsPerPod": 4}, decode={"acceleratorsPerPod": 8})
    assert "exceeds the model's 4 KV heads" in said
