"""What engines say before they end, and what to do: the lines of vLLM 0.33 and its libraries that name a cause.

A traceback's last lines seldom do: vLLM ends with "Engine core initialization failed. See root cause above."
"""

import re
from dataclasses import dataclass
from typing import Final

LONGEST_LINE: Final = 300


@dataclass(frozen=True, slots=True)
class Cause:
    """A line that names a cause, whole, and what to do, in terms of the serving's fields."""

    line: str
    remedy: str


_KNOWN: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), remedy)
    for pattern, remedy in (
        # v1/core/kv_cache_utils.py
        (
            r"no available memory for the cache blocks",
            "the weights leave no room for KV: give an engine more accelerators, or raise --gpu-memory-utilization",
        ),
        (r"larger than the available kv cache", "lower model.maxLength, or give an engine more accelerators"),
        # v1/worker/utils.py
        (
            r"less than desired gpu memory utilization",
            "something else holds memory of this device: see what runs on the node, or lower --gpu-memory-utilization",
        ),
        (r"cuda out of memory|outofmemoryerror", "more accelerators, or a lower --gpu-memory-utilization"),
        # config/model.py
        (r"attention heads .*must be divisible by tensor", "set tensorParallelSize to a divisor of the model's heads"),
        (r"user-specified max_model_len .* is greater", "lower model.maxLength to what the model's config allows"),
        # transformers_utils/config.py, tokenizers/hf.py
        (r"trust_remote_code=true", "if you trust the model's own code, add --trust-remote-code to engine.args"),
        # utils/argparse_utils.py
        (r"unrecognized arguments:", "this vLLM has no such flag: correct engine.args, or take another engine.image"),
        # distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py
        (r"nixl is not available", "the image has no NIXL: take one that has, such as images/engine-efa"),
        (r"nixl_err_backend", "NIXL cannot start its backend: the preflight's message says what of EFA is missing"),
        # huggingface_hub/errors.py
        (
            r"gated repo|gatedrepoerror",
            "ask for access at the hub, and name a Secret with the token in model.source.hub.tokenSecretRef",
        ),
        (r"repositorynotfounderror|repository not found", "correct model.id, or give model.source.hub.tokenSecretRef"),
        (
            r"offline mode is enabled|couldn't connect to .*huggingface|failed to resolve .*huggingface",
            "the pods do not reach the hub: let them, or put the weights on a volume (model.source)",
        ),
        # The operating system's
        (r"no space left on device", "more ephemeral storage for the pod, or weights on a volume (model.source)"),
        (r"no kernel image is available", "the image was not built for this accelerator: take another engine.image"),
        (r"error while loading shared libraries", "the image lacks a library: take another engine.image"),
    )
)


def cause_of(words: str) -> Cause | None:
    """Return the last line of a container's last words that names a known cause; None where none does."""
    for line in reversed(words.splitlines()):
        for pattern, remedy in _KNOWN:
            if pattern.search(line):
                return Cause(line.strip()[-LONGEST_LINE:], remedy)
    return None
