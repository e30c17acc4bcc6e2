"""Objects for tests: the smallest good serving, and changes on it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from duplex_operator.api import DisaggregatedServing

MINIMAL_SPEC: dict[str, Any] = {
    "model": {"id": "Qwen/Qwen3-32B"},
    "engine": {"image": "vllm/vllm-openai:v0.33.0"},
    "prefill": {"instanceType": "p5en.48xlarge"},
    "decode": {"instanceType": "p5en.48xlarge"},
}


def changed(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `change` laid over it, mapping by mapping; a value None removes the key."""
    result = deepcopy(base)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = changed(result[key], value)
        else:
            result[key] = deepcopy(value)
    return result


def serving_object(name: str = "chat", **change: Any) -> dict[str, Any]:
    """Return the smallest good object with a change of its spec."""
    return {
        "apiVersion": "duplex.dev/v1alpha1",
        "kind": "DisaggregatedServing",
        "metadata": {"name": name, "namespace": "llm"},
        "spec": changed(MINIMAL_SPEC, change),
    }


def serving(name: str = "chat", **change: Any) -> DisaggregatedServing:
    """Return the smallest good serving with a change of its spec."""
    return DisaggregatedServing.model_validate(serving_object(name, **change))
