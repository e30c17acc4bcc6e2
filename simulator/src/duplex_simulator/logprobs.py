"""Log-probabilities: made up, but the same for the same token, in the shapes of vLLM 0.33."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .tokenizer import Tokenizer


def _logprob(token: int) -> float:
    return -(token * 2_654_435_761 % 1000) / 1000


def _entry(token: int, tokenizer: Tokenizer) -> dict[str, Any]:
    data = tokenizer.bytes_of([token])
    return {"token": data.decode("utf-8", "replace"), "logprob": _logprob(token), "bytes": list(data)}


def _best(token: int, count: int, tokenizer: Tokenizer) -> list[int]:
    return [token, *((token + step) % tokenizer.size for step in range(1, count))][:count]


def entries(tokens: Sequence[int], count: int, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return one entry a token, as chat completions and responses have them, with the `count` best of each."""
    return [
        {
            **_entry(token, tokenizer),
            "top_logprobs": [_entry(each, tokenizer) for each in _best(token, count, tokenizer)],
        }
        for token in tokens
    ]


def columns(tokens: Sequence[int], count: int, tokenizer: Tokenizer, *, offset: int) -> dict[str, Any]:
    """Return the lists that completions have, for text that begins at `offset` of the answer's."""
    found = [_entry(token, tokenizer) for token in tokens]
    offsets = []
    for each in found:
        offsets.append(offset)
        offset += len(each["token"])
    tops = [
        {e["token"]: e["logprob"] for e in entries([token], count, tokenizer)[0]["top_logprobs"]} for token in tokens
    ]
    return {
        "text_offset": offsets,
        "token_logprobs": [each["logprob"] for each in found],
        "tokens": [each["token"] for each in found],
        "top_logprobs": tops,
    }
