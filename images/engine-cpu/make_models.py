"""Make small models with random weights, the same on every machine, so that tests need no model hub.

    make_models.py TARGET NAME...

`tiny` answers in milliseconds, `demo` is large enough that computing a prompt takes far longer than moving its KV, and
`window` has sliding-window layers. All speak a word-level tokenizer whose text comes back as the same tokens. `bpe` is
`tiny` with a byte-pair tokenizer that does not always bring them back, as real models sometimes do not. `adapter` is a
LoRA adapter for `tiny`. Weights are larger than a trainer would start with, so that the answer depends on the context.
"""

import argparse
import json
import pydoc_data.topics
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 4096
SEED = 1234
END, START, PAD, UNKNOWN = "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|unknown|>"
SPECIAL = [PAD, START, END, UNKNOWN]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|> {{ message['role'] }} {{ message['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)
# Common words that the corpus, which is about Python, does not all have: prose of them is one token a word.
COMMON_WORDS = """
the be to of and a in that have I it for not on with he as you do at this but his by from they we say her she or an
will my one all would there their what so up out if about who get which go me when make can like time no just him know
take people into year your good some could them see other than then now look only come its over think also back after
use two how our work first well way even new want because any these give day most us is are was were been being has had
did does done said says made came went saw got knew thought took found left right long little own old great big high
small large next early young important few public bad same able man men woman women child children life world school
state family student group country problem hand part place case week company system program question government number
night point home water room mother area money story fact month lot study book eye job word business issue side kind
head house service friend father power hour game line end member law car city community name president team minute idea
body information parent face others level office door health person art war history party result change morning reason
research girl guy moment air teacher force education foot boy age policy music mind market sense college interest death
course experience tax price here still those where much through before between must too under very years last never
down should while many might off each both against since during without again around however three every another
""".split()  # noqa: SIM905 - a list literal of words is harder to read
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
    "demo": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
}
ADAPTER_RANK = 8
WINDOW_TOKENS = 128


def _corpus() -> str:
    """Return English text that every Python brings along."""
    return "\n".join(pydoc_data.topics.topics.values())


def word_tokenizer() -> Tokenizer:
    """Return a tokenizer of one token per word, whose decoded text always encodes to the same tokens."""
    words = dict.fromkeys([*SPECIAL, "system", "user", "assistant", *COMMON_WORDS])
    words.update(dict.fromkeys(re.findall(r"[^\s]+", _corpus())))
    chosen = list(words)[:VOCABULARY]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(chosen)}, unk_token=UNKNOWN))
    # Without a decoder words are joined by single spaces, which the whitespace split undoes exactly.
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def byte_pair_tokenizer() -> Tokenizer:
    """Return a byte-pair tokenizer trained on the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_corpus().splitlines(keepends=True), trainer)
    return tokenizer


def _save_tokenizer(tokenizer: Tokenizer, target: Path) -> PreTrainedTokenizerFast:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        model_max_length=32_768,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(target)
    return fast


def _config(fast: PreTrainedTokenizerFast, shape: dict[str, int]) -> dict[str, Any]:
    return {
        **shape,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": fast.convert_tokens_to_ids(END),
        "pad_token_id": fast.convert_tokens_to_ids(PAD),
    }


def _model(name: str, config: dict[str, Any]) -> PreTrainedModel:
    if name != "window":
        return Qwen3ForCausalLM(Qwen3Config(**config))
    model = LlamaForCausalLM(LlamaConfig(**{**config, "num_hidden_layers": 4}))
    # vLLM reads these from the config file; transformers' Llama knows no windows.
    model.config.layer_types = ["sliding_attention", "full_attention"] * 2
    model.config.sliding_window = WINDOW_TOKENS
    return model


def _spread_weights(model: PreTrainedModel, specials: list[int]) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and ("embed" in name or "lm_head" in name):  # noqa: PLR2004 - a matrix
                weight.normal_(0, 1.0)
            elif weight.dim() == 2:  # noqa: PLR2004 - a matrix
                weight.normal_(0, 2.0 / weight.shape[1] ** 0.5)
        # Answers are words: a special token in the middle of a reply would end it early or not decode as text.
        model.lm_head.weight[specials] = 0


def make_model(name: str, target: Path) -> None:
    """Write the model `name` with its tokenizer below `target`."""
    target.mkdir(parents=True, exist_ok=True)
    fast = _save_tokenizer(byte_pair_tokenizer() if name == "bpe" else word_tokenizer(), target)
    torch.manual_seed(SEED)
    config = _config(fast, SHAPES.get(name, SHAPES["tiny"]))
    model = _model(name, config)
    _spread_weights(model, [fast.convert_tokens_to_ids(special) for special in SPECIAL])
    model.to(torch.float32).save_pretrained(target, safe_serialization=True)
    generation = {"do_sample": False, "eos_token_id": config["eos_token_id"]}
    (target / "generation_config.json").write_text(json.dumps(generation))
    print(f"{target}: {sum(weight.numel() for weight in model.parameters()) / 1e6:.1f}M parameters")


def make_adapter(target: Path) -> None:
    """Write a LoRA adapter for `tiny` below `target`, strong enough to change its answers."""
    target.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED + 1)
    shape = SHAPES["tiny"]
    outputs = {
        "q_proj": shape["num_attention_heads"] * shape["head_dim"],
        "v_proj": shape["num_key_value_heads"] * shape["head_dim"],
    }
    weights = {}
    for layer in range(shape["num_hidden_layers"]):
        for module, size in outputs.items():
            stem = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{stem}.lora_A.weight"] = torch.randn(ADAPTER_RANK, shape["hidden_size"]) * 0.3
            weights[f"{stem}.lora_B.weight"] = torch.randn(size, ADAPTER_RANK) * 0.3
    save_file(weights, target / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": ADAPTER_RANK,
        "lora_alpha": ADAPTER_RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(outputs),
    }
    (target / "adapter_config.json").write_text(json.dumps(config))
    print(f"{target}: adapter of rank {ADAPTER_RANK}")


def main() -> None:
    """Make the named models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("names", nargs="+", choices=[*SHAPES, "window", "bpe", "adapter"])
    arguments = parser.parse_args()
    for name in arguments.names:
        if name == "adapter":
            make_adapter(arguments.target / name)
        else:
            make_model(name, arguments.target / name)


if __name__ == "__main__":
    main()
