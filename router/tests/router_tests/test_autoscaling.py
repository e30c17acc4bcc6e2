"""What autoscalers ask of routers is what a router exports, under the labels that they select by."""

import asyncio
import re
import urllib.request
from pathlib import Path

from duplex_router.admin.scrape import Scraper, samples

from .rig import Engines, fresh, router, say, user

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/autoscaling"
_SELECTED = re.compile(r"(duplex_router_\w+)(?:\{([^}]*)\})?")
OF_THE_SCRAPE = {"namespace", "pod"}
"""Labels that Prometheus adds."""


async def test_every_metric_of_the_examples_is_exported(guarded: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, guarded.document()) as under_test:
        await say(under_test.client(), [*fresh(), user("one")])
        await Scraper(under_test.service.state).once()
        text = await asyncio.to_thread(_page, under_test.admin)
        engines = {engine.key: engine for engine in under_test.service.fleet.engines.values()}
    exported: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in samples(text):
        exported.setdefault(name, []).append((labels, value))
    asked = {found for path in EXAMPLES.glob("*.yaml") for found in _SELECTED.findall(path.read_text())}
    assert len({name for name, _ in asked}) >= 6
    for name, selector in asked:
        wanted = dict(re.findall(r'(\w+)=~?"([^"]*)"', selector))
        fit = {label: value for label, value in wanted.items() if label not in OF_THE_SCRAPE}
        assert any(fit.items() <= labels.items() for labels, _ in exported[name]), (name, selector)
    # What runs is what is in use without what is held: nothing here, between two turns.
    used = {labels["engine"]: value for labels, value in exported["duplex_router_engine_kv_used_tokens"]}
    held = {labels["engine"]: value for labels, value in exported["duplex_router_engine_held_tokens"]}
    room = {labels["engine"]: value for labels, value in exported["duplex_router_engine_kv_tokens"]}
    assert room.keys() == used.keys() == {engine.pod or engine.key for engine in engines.values()}
    holder = max(held, key=lambda engine: held[engine])
    assert 0 < held[holder] <= used[holder] < held[holder] + 16 * 4, "whole blocks"


def _page(admin: str) -> str:
    with urllib.request.urlopen(admin + "/metrics", timeout=5) as answer:  # noqa: S310 - loopback, http
        return str(answer.read(), "utf-8")
