"""What the routers of all servings answer to the operator, from one process of its own.

Pretended pods run nothing. In the benchmark's network all their addresses lead here, and who is asked is told by the
address that the request came to.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from duplex_connector.contract import ROUTER, Port
from duplex_kube.api import CONFIG_MAPS, PODS, KubeObject, Selection
from duplex_kube.client import connect
from duplex_kube.reflector import Change, Reflector

SICK: Final = "sick"
"""Servings whose name begins so have routers that take a request and never answer."""

Key = tuple[str, str]


def _router(pod: KubeObject) -> tuple[str, Key]:
    metadata = pod["metadata"]
    return (pod.get("status") or {}).get("podIP", ""), (metadata["namespace"], metadata["labels"]["duplex.dev/serving"])


def _fleet(config_map: KubeObject) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((config_map.get("data") or {}).get("fleet.json", "{}"))
    return {"version": found.get("version", [0, 0]), "revisions": [each["name"] for each in found.get("revisions", ())]}


class Routers:
    """All routers. Each has applied the newest fleet document and served tokens on every revision in it."""

    def __init__(self) -> None:
        self._servings: dict[str, Key] = {}
        self.fleets: Reflector[dict[str, Any]] | None = None

    def changed(self, change: Change[tuple[str, Key]]) -> None:
        """Take where a router pod is."""
        if change.old is not None:
            self._servings.pop(change.old[0], None)
        if change.new is not None and change.new[0]:
            self._servings[change.new[0]] = change.new[1]

    async def stats(self, request: web.Request) -> web.Response:
        """Answer as the router does at whose address the request has arrived."""
        address = request.transport.get_extra_info("sockname")[0] if request.transport is not None else ""
        namespace, serving = self._servings.get(address, ("", ""))
        if not serving or self.fleets is None:
            raise web.HTTPNotFound
        if serving.startswith(SICK):
            await asyncio.sleep(3600)
        fleet = self.fleets.records.get((namespace, f"{serving}-fleet"), {"version": [0, 0], "revisions": []})
        return web.json_response(
            {
                "fleetVersion": fleet["version"],
                "revisions": {name: {"servedTokens": 1, "bytesMoved": 4096} for name in fleet["revisions"]},
                "brokenPairs": [],
                "transport": {"backend": "UCX", "bytesMoved": 4096},
                "turns": 9,
            }
        )


async def main(kubeconfig: Path) -> None:
    """Serve until killed."""
    routers = Routers()
    async with await connect(kubeconfig, user_agent="routers") as api:
        fleets = Reflector(
            api, CONFIG_MAPS, Selection(None, "duplex.dev/serving"), trim=_fleet, on_change=lambda _change: None
        )
        routers.fleets = fleets
        selection = Selection(None, f"duplex.dev/role={ROUTER}")
        pods = Reflector(api, PODS, selection, trim=_router, on_change=routers.changed)
        app = web.Application()
        app.router.add_get("/stats", routers.stats)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", Port.ADMIN, backlog=4096).start()  # noqa: S104 - in a network of its own
        await asyncio.gather(fleets.run(), pods.run())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
