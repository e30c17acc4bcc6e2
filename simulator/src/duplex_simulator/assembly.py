"""Puts an engine together from its settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from duplex_connector.contract import Metric

from .blocks import BlockPool
from .clock import Clock
from .connector import Connector, StockConnector
from .engine import Engine
from .guarded import GuardedConnector
from .holds import Holds
from .metrics import Metrics
from .model import LanguageModel
from .profile import PROFILES
from .sequence import Layout
from .settings import Settings
from .sidechannel import Identity, SideChannelClient, SideChannelServer
from .template import TemplateKind
from .tokenizer import Tokenizer
from .transfers import Transfers


@dataclass
class Process:
    """One engine process: the engine, its side channel where it has a connector, and its metrics."""

    settings: Settings
    engine: Engine
    tokenizer: Tokenizer
    metrics: Metrics
    layout: Layout
    side_channel: SideChannelServer | None

    async def start(self) -> None:
        """Listen for peers, then begin to run."""
        connector = self.engine.connector
        if self.side_channel is not None and connector is not None:
            port = await self.side_channel.start(connector.settings.host, connector.settings.port)
            connector.settings = dataclasses.replace(connector.settings, port=port)
        self.engine.start()

    async def close(self) -> None:
        """Stop the engine and its side channel."""
        await self.engine.close()
        if self.side_channel is not None:
            await self.side_channel.close()


def assemble(settings: Settings, clock: Clock) -> Process:
    """Return the engine process that `settings` describe, not yet started."""
    # State-space models run without a prefix cache.
    caching = settings.layout.prefix_caching and not settings.layout.has_state
    layout = dataclasses.replace(settings.layout, prefix_caching=caching)
    tokenizer, metrics = Tokenizer(), Metrics(settings.names[0])
    pool = BlockPool(settings.blocks)
    thinks, lossy = settings.template is TemplateKind.STRIPS_THINKING, settings.tokenizer == "bpe-lossy"
    identity = _identity(settings, layout)
    profile = PROFILES[settings.profile]
    holds: Holds | None = None
    connector: Connector | None = None
    transfers: Transfers | None = None
    if settings.connector is not None and identity is not None:
        kv = settings.connector
        peers = SideChannelClient(identity, clock, kv.network_patience)
        transfers = Transfers(
            peers, pool, clock, metrics, profile, lease=kv.lease, scale=settings.time_scale, guarded=kv.guarded
        )
        holds = Holds(lambda tables: engine.free_blocks(tables), kv.lease, kv.guarded)  # noqa: PLW0108 - made below
        connector = (
            GuardedConnector(kv, holds, layout, clock, adapters=dict(settings.adapters), metrics=metrics)
            if kv.guarded
            else StockConnector(kv, holds, layout, clock)
        )
    engine = Engine(
        pool=pool,
        model=LanguageModel(tokenizer, settings.seed, thinks=thinks, lossy=lossy),
        profile=profile,
        clock=clock,
        metrics=metrics,
        max_length=settings.max_length,
        most_running=settings.most_running,
        chunk=settings.chunk,
        connector=connector,
        transfers=transfers,
        time_scale=settings.time_scale,
    )
    _gauges(metrics, engine, settings)
    if holds is not None:
        kv_bytes = profile.kv_bytes_per_token if settings.connector and settings.connector.guarded else None
        _hold_metrics(metrics, holds, kv_bytes)
    server = SideChannelServer(identity, engine, clock) if identity is not None else None
    return Process(settings, engine, tokenizer, metrics, layout, server)


def _identity(settings: Settings, layout: Layout) -> Identity | None:
    if settings.connector is None:
        return None
    kinds = [group.kind.value for group in layout.groups]
    # What vLLM's compatibility hash covers, as far as it exists here; block sizes are not in it.
    compatibility = json.dumps([settings.version, settings.model, kinds, layout.window])
    sizes = tuple(group.block_size for group in layout.groups)
    return Identity(settings.connector.engine_id, compatibility, sizes)


def _gauges(metrics: Metrics, engine: Engine, settings: Settings) -> None:
    scheduler, pool = engine.scheduler, engine.pool
    metrics.gauge(Metric.KV_USAGE, lambda: pool.usage)
    metrics.gauge(Metric.REQUESTS_RUNNING, lambda: len(scheduler.running) - scheduler.loading)
    metrics.gauge(Metric.REQUESTS_WAITING, lambda: len(scheduler.waiting) + scheduler.loading)
    metrics.gauge("vllm:num_requests_waiting_by_reason", lambda: len(scheduler.waiting), reason="capacity")
    metrics.gauge("vllm:num_requests_waiting_by_reason", lambda: scheduler.loading, reason="deferred")
    metrics.gauge(
        "vllm:cache_config_info",
        lambda: 1,
        block_size=str(settings.layout.groups[-1].block_size),
        num_gpu_blocks=str(settings.blocks),
        enable_prefix_caching=str(settings.layout.prefix_caching),
    )
    metrics.counter("vllm:num_preemptions", lambda: scheduler.preemptions)
    metrics.counter("sim_corrupt_answers", lambda: engine.corrupt_answers)
    metrics.counter("sim_freed_block_reads", lambda: engine.freed_reads)


def _hold_metrics(metrics: Metrics, holds: Holds, kv_bytes_per_token: int | None) -> None:
    """Add the metrics of the stock connector, and those of the guarded one where a size is given."""
    counts = holds.counts
    metrics.counter(Metric.NIXL_EXPIRED, lambda: counts.expired + metrics.value(Metric.NIXL_EXPIRED))
    metrics.counter("vllm:nixl_num_notifications_after_expiry", lambda: counts.late)
    for name in (Metric.NIXL_FAILED, "vllm:nixl_num_failed_notifications"):
        metrics.add(name, 0)
    for name in ("vllm:nixl_xfer_time_seconds", Metric.NIXL_BYTES, "vllm:nixl_num_descriptors"):
        metrics.histogram(name)
    if kv_bytes_per_token is None:
        return
    for name in (Metric.DUPLEX_PULLS, Metric.DUPLEX_PULLED_TOKENS, Metric.DUPLEX_PROVED_TOKENS):
        metrics.add(name, 0)
    metrics.gauge(Metric.DUPLEX_HOLDS, lambda: len(holds.turns()))
    metrics.gauge(Metric.DUPLEX_HELD_TOKENS, lambda: sum(hold.tokens for hold in holds.turns()))
    metrics.gauge(Metric.DUPLEX_KV_BYTES, lambda: kv_bytes_per_token)
    readers: Mapping[str, str] = {
        Metric.DUPLEX_RENEWALS: "renewals",
        Metric.DUPLEX_RELEASES: "releases",
        Metric.DUPLEX_LAPSES: "lapses",
    }
    for name, field in readers.items():
        metrics.counter(name, partial(getattr, counts, field))
