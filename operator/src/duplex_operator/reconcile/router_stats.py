"""What the routers of a serving say of themselves, asked for over HTTP no more often than it helps."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import aiohttp

from duplex_connector.contract import ROUTER, Port
from duplex_operator.plan import Pod, RouterStats, parse_stats
from duplex_operator.reconcile.servings import Key
from duplex_operator.runtime.clock import Clock

TIMEOUT_SECONDS = 2.0
TRIES = 2
"""One answer may get lost with a router that is busy for a moment; without it the serving would not be Ready."""
LONGEST_ANSWER_BYTES = 256 * 1024

StatsReader = Callable[[str], Awaitable[object]]
"""Gets a router's /stats document by pod IP. Raises OSError, TimeoutError or ValueError where there is none."""


class HttpStatsReader:
    """Reads /stats from the admin port of a router pod."""

    def __init__(self, port: int = Port.ADMIN) -> None:
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, address: str) -> object:
        """See ``StatsReader``."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=False)
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.get(f"http://{host}:{self._port}/stats") as answer:
                answer.raise_for_status()
                raw = await answer.content.read(LONGEST_ANSWER_BYTES + 1)
                while not answer.content.at_eof() and len(raw) <= LONGEST_ANSWER_BYTES:
                    raw += await answer.content.read(LONGEST_ANSWER_BYTES + 1)
        except aiohttp.ClientError as error:
            raise OSError(f"router at {address}: {error}") from error
        if len(raw) > LONGEST_ANSWER_BYTES:
            raise ValueError(f"router at {address}: /stats is longer than {LONGEST_ANSWER_BYTES} bytes")
        return json.loads(raw)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


@dataclass(frozen=True, slots=True)
class _Answers:
    at: float
    asked: frozenset[str]
    stats: Mapping[str, RouterStats]


class RouterStatsCache:
    """Answers of the routers of every serving, not older than asked for."""

    def __init__(self, reader: StatsReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._answers: dict[Key, _Answers] = {}

    async def of(self, key: Key, pods: tuple[Pod, ...], *, oldest: float) -> Mapping[str, RouterStats]:
        """Return what the ready routers among ``pods`` said at most ``oldest`` seconds ago, by pod name."""
        ready = {pod.name: pod.ip for pod in pods if _answers(pod)}
        known = self._answers.get(key)
        if known is None or self._clock.now() - known.at >= oldest or ready.keys() - known.asked:
            at = self._clock.now()
            documents = await asyncio.gather(*(self._read(ip) for ip in ready.values()))
            stats = {name: found for name, found in zip(ready, documents, strict=True) if found is not None}
            known = self._answers[key] = _Answers(at, frozenset(ready), stats)
        return {name: stats for name, stats in known.stats.items() if name in ready}

    def forget(self, key: Key) -> None:
        """Forget a serving that is gone."""
        self._answers.pop(key, None)

    async def _read(self, address: str) -> RouterStats | None:
        for _ in range(TRIES):
            try:
                return parse_stats(await self._reader(address))
            except (OSError, TimeoutError):
                continue
            except ValueError:
                break
        return None  # a router that does not answer is one that has not acknowledged and served nothing


def _answers(pod: Pod) -> bool:
    return pod.role == ROUTER and pod.ready and not pod.terminating and bool(pod.ip)
