"""Holds, pulls and proofs in vLLM's own metrics registry, beside its NIXL metrics.

vLLM 0.32 and 0.33 (kv_connector/v1/metrics.py, nixl/stats.py) carry a connector's statistics from the engine process
to the API process as a dict of lists, and let the connector turn them into Prometheus metrics there.
"""

from __future__ import annotations

from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics
from vllm.v1.metrics.utils import create_metric_per_engine

from .contract import Metric

COUNTERS: Final = {
    Metric.DUPLEX_PULLS: "Pulls of decode's KV by a prefill engine that delivered.",
    Metric.DUPLEX_PULLED_TOKENS: "Prompt tokens whose KV such pulls delivered.",
    Metric.DUPLEX_PROVED_TOKENS: "Prompt tokens whose KV a handle was proved to name, pulled or not.",
    Metric.DUPLEX_RENEWALS: "Holds whose deadline the router moved.",
    Metric.DUPLEX_RELEASES: "Holds that the router released.",
    Metric.DUPLEX_LAPSES: "Holds that nobody released or consumed before their deadline.",
}
GAUGES: Final = {
    Metric.DUPLEX_HOLDS: "Finished turns whose KV this engine keeps.",
    Metric.DUPLEX_HELD_TOKENS: "Tokens whose KV these holds keep.",
    Metric.DUPLEX_KV_BYTES: "Bytes of KV cache that a token takes on all of the engine's devices together.",
}
_OWN: Final = (*COUNTERS, *GAUGES)


class GuardedStats(NixlKVConnectorStats):  # type: ignore[misc] # vLLM is only there inside an engine image
    """vLLM's statistics with ours: for each metric the list of what was recorded since the last report."""

    def reset(self) -> None:
        """Forget what was reported."""
        super().reset()
        self.data.update({name: [] for name in _OWN})

    def record(self, name: str, value: int) -> None:
        """Add `value` to a counter, or set a gauge to it."""
        self.data[name].append(value)

    def is_empty(self) -> bool:
        """Return whether there is nothing to report."""
        return super().is_empty() and not any(self.data[name] for name in _OWN)

    def reduce(self) -> dict[str, int | float]:
        """Return the interval's numbers for vLLM's periodic log line."""
        own: dict[str, int | float] = {name.removeprefix("vllm:"): sum(self.data[name]) for name in COUNTERS}
        own |= {name.removeprefix("vllm:"): values[-1] for name in GAUGES if (values := self.data[name])}
        return {**super().reduce(), **own}


class GuardedPromMetrics(NixlPromMetrics):  # type: ignore[misc] # as above
    """vLLM's NIXL metrics and ours."""

    def __init__(
        self,
        vllm_config: Any,  # noqa: ANN401 - vLLM's VllmConfig
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {name: self._per_engine(self._counter_cls, name, text) for name, text in COUNTERS.items()}
        self._gauges = {name: self._per_engine(self._gauge_cls, name, text) for name, text in GAUGES.items()}

    def _per_engine(self, metric_class: Any, name: str, text: str) -> Any:  # noqa: ANN401 - Prometheus classes by vLLM
        # Only one process per engine sets a gauge, so the newest value is the one to show.
        extra = {"multiprocess_mode": "mostrecent"} if name in GAUGES else {}
        metric = metric_class(name=name, documentation=text, labelnames=self._labelnames, **extra)
        return create_metric_per_engine(metric, self.per_engine_labelvalues)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Put one report into the registry."""
        super().observe(transfer_stats_data, engine_idx)
        for name, counters in self._counters.items():
            counters[engine_idx].inc(sum(transfer_stats_data.get(name, ())))
        for name, gauges in self._gauges.items():
            if values := transfer_stats_data.get(name):
                gauges[engine_idx].set(values[-1])
