"""What the probes are told, over HTTP."""

import aiohttp

from duplex_operator.runtime.health import Health, serve
from duplex_operator.runtime.metrics import Metrics


async def ask(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_healthz_fails_with_the_reason_while_a_limit_is_passed() -> None:
    health = Health()
    age = 10.0
    health.add_limit("watch of pods", lambda: age, 300, "nothing heard")
    async with serve(health, Metrics(), lambda: None, "127.0.0.1", 0) as port:
        assert await ask(port, "/healthz") == (200, "ok\n")
        age = 301.0
        assert await ask(port, "/healthz") == (503, "watch of pods: nothing heard for 301 s, more than 300\n")
        age = 0.0
        assert (await ask(port, "/healthz"))[0] == 200


async def test_readyz_follows_the_start() -> None:
    health = Health()
    async with serve(health, Metrics(), lambda: None, "127.0.0.1", 0) as port:
        assert (await ask(port, "/readyz"))[0] == 503
        health.ready = True
        assert (await ask(port, "/readyz"))[0] == 200


async def test_metrics_are_fresh_when_read() -> None:
    metrics = Metrics()
    async with serve(Health(), metrics, lambda: metrics.queue_depth.set(7), "127.0.0.1", 0) as port:
        status, text = await ask(port, "/metrics")
    assert status == 200
    assert "duplex_operator_queue_depth 7.0" in text
