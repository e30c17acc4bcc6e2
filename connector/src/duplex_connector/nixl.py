"""The guarded NixlConnector: vLLM's own, that pulls only KV which is proved to be the prompt's.

Loaded by `kv_connector_module_path: duplex_connector.nixl`. Runs on the vLLM releases that the capability table marks
`guarded_tested`. Decisions are made in proof.py, handle.py and holds.py, which know nothing of vLLM; this module and
its three `nixl_*` neighbours only carry them to vLLM's hooks.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector as _StockConnector

from .nixl_scheduler import GuardedScheduler
from .nixl_stats import GuardedPromMetrics, GuardedStats
from .nixl_worker import GuardedWorker


class NixlConnector(_StockConnector):  # type: ignore[misc] # vLLM is only there inside an engine image
    """vLLM's connector with the guarded scheduler and worker.

    The name is vLLM's on purpose: it keys behaviour on the class name (vllm/config/vllm.py, platforms/cpu.py; 0.33.0).
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:  # noqa: ANN401 - vLLM's
        # Past the pull connector's own __init__, which would build a second NIXL agent with its own threads.
        super(_StockConnector, self).__init__(vllm_config, role, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = GuardedScheduler(vllm_config, self.engine_id, kv_cache_config)
        else:
            self.connector_worker = GuardedWorker(vllm_config, self.engine_id, kv_cache_config)

    def get_kv_connector_stats(self) -> GuardedStats | None:
        """Report the scheduler's statistics too: the stock connector has none (nixl/connector.py, 0.33.0)."""
        if self.connector_scheduler is not None:
            return self.connector_scheduler.take_stats()
        return super().get_kv_connector_stats()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> GuardedStats:
        """Rebuild statistics that crossed a process boundary."""
        return GuardedStats(data=data) if data is not None else GuardedStats()

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,  # noqa: ANN401 - vLLM's VllmConfig
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> GuardedPromMetrics:
        """Register vLLM's NIXL metrics and ours."""
        return GuardedPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
