"""Prometheus metrics under vLLM's names, in the text format; gauges are read from the engine when asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from duplex_connector.contract import Metric

_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_BYTE_BUCKETS: Final = tuple(float(2**power) for power in range(10, 37, 2))


@dataclass
class _Histogram:
    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    count: int = 0

    def observe(self, value: float) -> None:
        if not self.counts:
            self.counts = [0] * len(self.bounds)
        self.total += value
        self.count += 1
        for index, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[index] += 1


Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters, histograms and gauges of one engine; every sample carries vLLM's `model_name` and `engine` labels."""

    def __init__(self, model: str) -> None:
        self._common: Labels = (("engine", "0"), ("model_name", model))
        self._began = time.time()
        self._counters: dict[str, dict[Labels, float]] = {}
        self._gauges: dict[str, dict[Labels, Callable[[], float]]] = {}
        self._read_counters: dict[str, Callable[[], float]] = {}
        self._histograms: dict[str, _Histogram] = {}

    def add(self, name: str, value: float, **labels: str) -> None:
        """Add to a counter; its sample is exposed as `name_total`."""
        series = self._counters.setdefault(name, {})
        key = tuple(sorted(labels.items()))
        series[key] = series.get(key, 0.0) + value

    def value(self, name: str, **labels: str) -> float:
        """Return a counter's value."""
        return self._counters.get(name, {}).get(tuple(sorted(labels.items())), 0.0)

    def counter(self, name: str, read: Callable[[], float]) -> None:
        """Expose a counter that somebody else keeps, in place of one of the same name that `add` keeps."""
        self._read_counters[name] = read

    def gauge(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Expose what `read` returns at the time of the scrape."""
        self._gauges.setdefault(name, {})[tuple(sorted(labels.items()))] = read

    def histogram(self, name: str) -> _Histogram:
        """Return a histogram, exposed from now on; names with `bytes` are in bytes, else in seconds or counts."""
        bounds = _BYTE_BUCKETS if "bytes" in name else _BUCKETS
        return self._histograms.setdefault(name, _Histogram(bounds))

    def observe(self, name: str, value: float) -> None:
        """Add one observation to a histogram."""
        self.histogram(name).observe(value)

    def exposition(self) -> str:
        """Return the text that `/metrics` answers with."""
        # As prometheus_client's collector of the process shows it: no labels.
        lines = [f"# TYPE {Metric.PROCESS_START} gauge", f"{Metric.PROCESS_START} {self._began!r}"]
        for name, gauges in self._gauges.items():
            lines.append(f"# TYPE {name} gauge")
            lines += [f"{name}{self._labels(key)} {float(read())!r}" for key, read in gauges.items()]
        for name, read in self._read_counters.items():
            lines += [f"# TYPE {name} counter", f"{name}_total{self._labels(())} {float(read())!r}"]
        for name, series in self._counters.items():
            if name in self._read_counters:
                continue
            lines.append(f"# TYPE {name} counter")
            lines += [f"{name}_total{self._labels(key)} {value!r}" for key, value in series.items()]
        for name, histogram in self._histograms.items():
            lines.append(f"# TYPE {name} histogram")
            for bound, count in zip(histogram.bounds, histogram.counts or [0] * len(histogram.bounds), strict=True):
                lines.append(f"{name}_bucket{self._labels((('le', repr(bound)),))} {float(count)!r}")
            lines.append(f"{name}_bucket{self._labels((('le', '+Inf'),))} {float(histogram.count)!r}")
            lines.append(f"{name}_sum{self._labels(())} {histogram.total!r}")
            lines.append(f"{name}_count{self._labels(())} {float(histogram.count)!r}")
        return "\n".join(lines) + "\n"

    def _labels(self, extra: Labels) -> str:
        return "{" + ",".join(f'{name}="{value}"' for name, value in (*self._common, *extra)) + "}"
