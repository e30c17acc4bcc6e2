"""What the router reads of its engines' `/metrics`: the size of their KV cache, and bytes moved between them."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from http import HTTPStatus

from duplex_connector.contract import Backend, Metric
from duplex_router.fleet.engines import Engine
from duplex_router.ledger.fates import Fate
from duplex_router.turn.legs import Failure

from .asking import ask
from .state import AdminState

INTERVAL_SECONDS = 10.0
AGAIN_SECONDS = 1.0
_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_CACHE_INFO = "vllm:cache_config_info"
_BYTES = (f"{Metric.NIXL_BYTES}_sum", f"{Metric.NIXL_BYTES}_total")


Sample = tuple[str, dict[str, str], float]
"""Name, labels and value."""


def samples(text: str) -> Iterator[Sample]:
    """Yield (name, labels, value) of a page in Prometheus' text format; other lines are left out."""
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        yield found[1], dict(_LABEL.findall(found[2] or "")), value


def kv_tokens(page: Iterable[Sample]) -> int | None:
    """Return how many tokens an engine's KV cache holds (vLLM's cache_config_info); None where it does not say."""
    for name, labels, _ in page:
        if name == _CACHE_INFO:
            try:
                return int(labels["num_gpu_blocks"]) * int(labels["block_size"])
            except (KeyError, ValueError):
                return None
    return None


def kv_use(page: Iterable[Sample]) -> float | None:
    """Return which part of an engine's KV cache is in use, that of holds included; None where it does not say."""
    ranks = [value for name, _, value in page if name == Metric.KV_USAGE]
    return sum(ranks) / len(ranks) if ranks else None


def kv_bytes_per_token(page: Iterable[Sample]) -> int | None:
    """Return the bytes of KV cache per token; only a guarded engine says it, and not before its first step."""
    found = [value for name, _, value in page if name == Metric.DUPLEX_KV_BYTES]
    return int(max(found)) if found and max(found) > 0 else None


def process_began(page: Iterable[Sample]) -> float | None:
    """Return the Unix time at which an engine's process began; None where several answer for it, so none says."""
    return next((value for name, _, value in page if name == Metric.PROCESS_START), None)


def bytes_moved(page: Iterable[Sample]) -> int:
    """Return how many bytes NIXL has moved for an engine."""
    return int(sum(value for name, _, value in page if name in _BYTES))


def backend(page: Iterable[Sample]) -> str | None:
    """Return the NIXL backend where the page names one."""
    for _, labels, _ in page:
        if labels.get("backend") in list(Backend):
            return labels["backend"]
    return None


class Scraper:
    """Reads all engines, each apart from the others. It is the router's probe besides: a hung engine is found by it."""

    def __init__(self, state: AdminState) -> None:
        self._state = state
        self._moved: dict[str, tuple[str, int]] = {}
        self._moved_by_gone: Counter[str] = Counter()

    async def once(self) -> None:
        """Read every engine once; one that does not answer keeps what was known of it, and rests."""
        engines = list(self._state.core.fleet.engines.values())
        await asyncio.gather(*(self._read(engine) for engine in engines))
        for key in self._moved.keys() - {engine.key for engine in engines}:
            revision, moved = self._moved.pop(key)
            self._moved_by_gone[revision] += moved
        total = self._moved_by_gone.copy()
        for revision, moved in self._moved.values():
            total[revision] += moved
        self._state.transport.bytes_by_revision = total

    async def look_again(self) -> None:
        """Read those that failed lately: one that has started anew has lost what it held, which turns should know."""
        engines = [engine for engine in self._state.core.fleet.engines.values() if engine.failures]
        await asyncio.gather(*(self._read(engine, blame=False) for engine in engines))

    async def _read(self, engine: Engine, *, blame: bool = True) -> None:
        core = self._state.core
        answer = await ask(core.transport, engine, b"/metrics", method=b"GET")
        if isinstance(answer, Failure):
            if blame:
                engine.failed(core.clock())
            return
        engine.heard_at = core.clock()
        if answer.status != HTTPStatus.OK:
            return
        page = list(samples(answer.body.decode("utf-8", "replace")))
        if core.fleet.process_began(engine, process_began(page)):
            core.counters.holds_ended[Fate.BOOT] += core.ledger.forget_engine(engine.key, Fate.BOOT)
        engine.kv_tokens = kv_tokens(page)
        engine.kv_use = kv_use(page)
        engine.kv_bytes_per_token = kv_bytes_per_token(page) or engine.kv_bytes_per_token
        _, before = self._moved.get(engine.key, ("", 0))
        self._moved[engine.key] = (engine.revision, max(before, bytes_moved(page)))
        self._state.transport.backend = backend(page) or self._state.transport.backend

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.once()
            for _ in range(round(INTERVAL_SECONDS / AGAIN_SECONDS)):
                await asyncio.sleep(AGAIN_SECONDS)
                await self.look_again()
