"""What is allowed and may still not be meant: warnings, each with its numbers, and the memory arithmetic as a note."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from duplex_connector.contract import ConnectorKind
from duplex_operator.api import DisaggregatedServing, Resolved, resolve
from duplex_operator.lint.findings import Finding, note, warning
from duplex_operator.lint.memory import KvShape, ModelFiles, kv_shape

GIB: Final = 1024**3
_UTILIZATION: Final = re.compile(r"^--gpu[-_]memory[-_]utilization(?:=(.*))?$")
_DEFAULT_UTILIZATION: Final = 0.9
"""vLLM's share of device memory where nothing is said (--gpu-memory-utilization)."""


def advice(serving: DisaggregatedServing, model: ModelFiles | None) -> Iterator[Finding]:
    """Yield warnings and notes on a serving that the cluster takes; with its model's files also the arithmetic.

    Raises ConfigError.
    """
    spec = serving.spec
    resolved = resolve(spec)
    reuse = spec.kv_transfer.bidirectional
    if not resolved.bidirectional:
        yield warning("spec.kvTransfer.bidirectional.enabled", "off: every turn computes its whole history again")
    elif not resolved.streams:
        yield warning(
            "spec.engine.features",
            f"vLLM {resolved.version} does not put transfer parameters into streams: only turns that are not streamed "
            "are reused; use 0.33 or newer, or an image that streams them and name StreamsKVParams",
        )
    if resolved.bidirectional and resolved.connector is ConnectorKind.STOCK:
        yield warning(
            "spec.engine.connector",
            "Stock proves nothing: only histories that a template probe finds stable are reused, each hold once, and "
            f"an edit of ttlSeconds ({reuse.ttl_seconds}) or of the threshold restarts the engines",
        )
    if resolved.fabric is False and resolved.prefill.instance.efa:
        yield warning("spec.kvTransfer.backend", "KV crosses TCP, about a hundred times slower than EFA")
    if model is not None:
        shape = kv_shape(model, kv_cache_dtype=spec.engine.kv_cache_dtype, dtype=spec.engine.dtype)
        yield from _memory(serving, resolved, shape)


def _memory(serving: DisaggregatedServing, resolved: Resolved, shape: KvShape) -> Iterator[Finding]:
    yield from _heads(resolved, shape)
    if shape.whole_or_nothing() and not serving.spec.engine.whole_windows:
        yield warning(
            "spec.engine.wholeWindows",
            "the model has layers with a window or a state: a history that was changed anywhere is reused not at all",
        )
    decode, reuse = resolved.decode, serving.spec.kv_transfer.bidirectional
    size = shape.bytes_per_token(decode.tensor_parallel_size)
    longest = serving.spec.model.max_length or shape.longest
    yield note(
        "spec.model", f"a token takes {size:,} bytes of KV on {decode.tensor_parallel_size} rank(s)" + _windows(shape)
    )
    pool = _pool_bytes(serving, resolved, shape)
    if pool is None or not size:
        return
    if pool <= 0:
        yield warning(
            "spec.decode.instanceType",
            f"the weights ({(shape.weights_bytes or 0) / GIB:.0f} GiB) leave no room for KV on {decode.devices} x "
            f"{decode.instance.device_name} ({decode.instance.device_memory_mib / 1024:.0f} GiB each)",
        )
        return
    tokens = pool // size
    budget = tokens * reuse.retention_budget.percent_of_kv // 100
    text = (
        f"a decode pod keeps about {tokens:,} tokens ({pool / GIB:.0f} GiB); finished turns may hold {budget:,} of them"
    )
    if longest is None:
        yield note("spec.decode", text)
    elif budget < longest:
        yield warning(
            "spec.kvTransfer.bidirectional.retentionBudget.percentOfKV",
            f"{text}, less than one conversation of {longest:,} tokens: raise it, or lower model.maxLength",
        )
    else:
        pods = max(decode.spec.replicas, 1)
        yield note(
            "spec.decode",
            f"{text}: {budget // longest} conversation(s) of {longest:,} tokens per pod, {budget * pods // longest} on "
            f"{pods} pod(s), each for {reuse.ttl_seconds} s unless renewed",
        )


def _heads(resolved: Resolved, shape: KvShape) -> Iterator[Finding]:
    sizes = [role.tensor_parallel_size for role in resolved.roles]
    if shape.heads and len(set(sizes)) > 1 and max(sizes) > shape.heads:
        yield warning(
            "spec.decode.tensorParallelSize",
            f"the roles' sizes differ and the larger, {max(sizes)}, exceeds the model's {shape.heads} KV heads: vLLM "
            "cannot read repeated heads; use equal sizes, or at most as many ranks as heads",
        )


def _windows(shape: KvShape) -> str:
    return f", and {shape.windowed:,} more within its last {shape.window:,} tokens" if shape.windowed else ""


def _pool_bytes(serving: DisaggregatedServing, resolved: Resolved, shape: KvShape) -> int | None:
    """Return the bytes that one decode pod has for KV; None where the weights' size or the devices are not known.

    An upper bound: activations and graphs take some too, by an amount that only the engine knows.
    """
    decode = resolved.decode
    if shape.weights_bytes is None or not decode.devices:
        return None
    args = [*(serving.spec.engine.args or ()), *(decode.spec.args or ())]
    memory = decode.devices * decode.instance.device_memory_mib * 1024**2
    return int(memory * _utilization(args)) - shape.weights_bytes


def _utilization(args: Sequence[str]) -> float:
    value: str | None = None
    for index, argument in enumerate(args):
        if found := _UTILIZATION.match(argument):
            value = found[1] if found[1] is not None else next(iter(args[index + 1 : index + 2]), None)
    try:
        return float(value) if value is not None else _DEFAULT_UTILIZATION
    except ValueError:
        return _DEFAULT_UTILIZATION
