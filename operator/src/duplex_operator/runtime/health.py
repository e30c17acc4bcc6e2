"""The probes' side of the operator: /healthz says whether a restart would help, /readyz whether it has started."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from duplex_operator.runtime.metrics import CONTENT_TYPE, Metrics

Check = Callable[[], str | None]
"""Returns what is wrong, or None."""


class Health:
    """Named checks. A check that is added twice under one name replaces the first."""

    def __init__(self) -> None:
        self.ready = False
        self._checks: dict[str, Check] = {}

    def add(self, name: str, check: Check) -> None:
        """Have ``check`` asked at every /healthz."""
        self._checks[name] = check

    def add_limit(self, name: str, value: Callable[[], float], limit: float, what: str) -> None:
        """Have /healthz fail while ``value`` (seconds) is above ``limit``; ``what`` says what lasts so long."""

        def check() -> str | None:
            seconds = value()
            return f"{what} for {seconds:.0f} s, more than {limit:.0f}" if seconds > limit else None

        self.add(name, check)

    def problems(self) -> dict[str, str]:
        """Return what is wrong now, by check."""
        return {name: problem for name, check in self._checks.items() if (problem := check()) is not None}


@asynccontextmanager
async def serve(
    health: Health, metrics: Metrics, refresh: Callable[[], None], host: str, port: int
) -> AsyncIterator[int]:
    """Serve /healthz, /readyz and /metrics while the context lasts; yields the port (a free one where 0 is asked).

    ``refresh`` brings gauges up to date before they are read. Readiness does not depend on being the leader: a
    rolling update would wait for ever for a second replica that cannot lead.
    """

    async def healthz(_: web.Request) -> web.Response:
        problems = health.problems()
        lines = [f"{name}: {problem}" for name, problem in problems.items()] or ["ok"]
        return web.Response(text="\n".join(lines) + "\n", status=503 if problems else 200)

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n" if health.ready else "starting\n", status=200 if health.ready else 503)

    async def metrics_text(_: web.Request) -> web.Response:
        refresh()
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics_text)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
