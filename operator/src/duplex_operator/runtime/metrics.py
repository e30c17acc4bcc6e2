"""What the operator counts about itself, in Prometheus' text format. One registry an operator, none global."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_RECONCILE_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0)


class Metrics:
    """Every metric of the operator, by what it says. Names begin with ``duplex_operator_``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queue_depth = self._gauge("queue_depth", "Servings that wait for a worker")
        self.queue_wait = self._gauge("queue_longest_wait_seconds", "Longest wait for a worker now")
        self.in_flight = self._gauge("reconcile_longest_seconds", "Longest reconcile that is under way now")
        self.watch_age = self._gauge("watch_age_seconds", "Since a watch heard anything", "resource")
        self.leader = self._gauge("leader", "1 where this process is the leader")
        self.reconciles = self._counter("reconciles", "Reconciles", "outcome")
        self.retries = self._counter("retries", "Reconciles put off after a failure")
        self.writes = self._counter("writes", "Requests that change something", "verb")
        self.duration = Histogram(
            "duplex_operator_reconcile_seconds",
            "Time of one reconcile",
            buckets=_RECONCILE_BUCKETS,
            registry=self.registry,
        )

    def render(self) -> bytes:
        """Return all of them as text."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"duplex_operator_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"duplex_operator_{name}", text, labels, registry=self.registry)
