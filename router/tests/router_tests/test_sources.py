"""Where the fleet comes from: a file that changes or breaks, and Kubernetes' objects."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from duplex_connector.contract import Role
from duplex_kube.api import CONFIG_MAPS, KubeApi, KubeObject, ListPage, Resource, Selection, WatchEvent
from duplex_router.fleet.fleet import Fleet
from duplex_router.source.file import FileSource
from duplex_router.source.kubernetes import KubernetesSource, read_slice

from .test_fleet import DOCUMENT
from .test_ledger import Clock

FILE: dict[str, Any] = {
    "model": {"name": "m"},
    "revisions": [{"name": "r", "engines": {"prefill": ["http://127.0.0.1:1"], "decode": ["http://127.0.0.1:2"]}}],
}


def new_fleet() -> Fleet:
    return Fleet(Clock(), on_gone=lambda _: None)


def test_a_file_is_read_again_when_it_changes_and_the_last_good_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    fleet = new_fleet()
    source = FileSource(fleet, path)
    source.refresh()
    assert fleet.document is None
    assert "cannot be read" in fleet.broken
    path.write_text("model: {name: one}\nrevisions: []\n")
    source.refresh()
    assert fleet.document is not None
    assert (fleet.document.model.name, fleet.broken) == ("one", "")
    for broken in ("model: {", "model: {name: 7}\nrevisions: []\n", "- 1\n", ""):
        path.write_text(broken)
        source.refresh()
        assert fleet.broken
        assert fleet.document.model.name == "one"
    path.unlink()
    source.refresh()
    assert fleet.document.model.name == "one"
    path.write_text(json.dumps(FILE))
    source.refresh()
    assert fleet.document.model.name == "m"
    assert fleet.complete("r")


def endpoint_slice(service: str, *endpoints: KubeObject, name: str = "s1") -> KubeObject:
    return {
        "metadata": {
            "namespace": "llm",
            "name": name,
            "resourceVersion": "1",
            "labels": {"kubernetes.io/service-name": service},
        },
        "ports": [{"name": "metrics", "port": 9}, {"name": "api", "port": 8000}],
        "endpoints": list(endpoints),
    }


def pod(uid: str, **conditions: bool) -> KubeObject:
    return {
        "addresses": ["10.0.0.1"],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": f"pod-{uid}", "uid": uid},
    }


@pytest.mark.parametrize(
    ("conditions", "ready", "serving"),
    [
        ({"ready": True, "serving": True, "terminating": False}, True, True),
        ({"ready": False, "serving": False}, False, False),
        ({"ready": False, "serving": True, "terminating": True}, False, True),
        ({"ready": True, "serving": True, "terminating": True}, False, True),
        ({}, True, True),
    ],
)
def test_an_endpoints_conditions(conditions: dict[str, bool], ready: bool, serving: bool) -> None:  # noqa: FBT001 - parameters of the test
    service, (endpoint,) = read_slice(endpoint_slice("svc", pod("u1", **conditions)))
    assert service == "svc"
    assert (endpoint.key, endpoint.pod, endpoint.host, endpoint.port) == ("u1", "pod-u1", "10.0.0.1", 8000)
    assert (endpoint.ready, endpoint.serving) == (ready, serving)


class FakeKube:
    """Serves lists, then a watch that the test feeds."""

    def __init__(self, objects: dict[str, list[KubeObject]]) -> None:
        self.objects = objects
        self.selections: dict[str, Selection] = {}
        self.events: dict[str, asyncio.Queue[WatchEvent]] = {}

    async def list(self, resource: Resource, selection: Selection, **_: Any) -> ListPage:
        self.selections[resource.plural] = selection
        return ListPage(self.objects[resource.plural], "1")

    async def watch(self, resource: Resource, *_: Any, **__: Any) -> AsyncGenerator[WatchEvent, None]:
        queue = self.events.setdefault(resource.plural, asyncio.Queue())
        while True:
            yield await queue.get()

    async def send(self, resource: Resource, kind: str, obj: KubeObject) -> None:
        await self.events.setdefault(resource.plural, asyncio.Queue()).put(WatchEvent(kind, obj))
        await asyncio.sleep(0.01)


def config_map(**changes: Any) -> KubeObject:
    return {
        "metadata": {"namespace": "llm", "name": "qwen-fleet", "resourceVersion": "2"},
        "data": {"fleet.json": json.dumps({**DOCUMENT, **changes})},
    }


async def test_kubernetes_feeds_the_fleet_and_its_loss_changes_nothing() -> None:
    kube = FakeKube(
        {
            "configmaps": [config_map()],
            "endpointslices": [
                endpoint_slice("one-p", pod("p1", ready=True)),
                endpoint_slice("one-d", pod("d1", ready=True), name="s2"),
                endpoint_slice("one-d", pod("d2", ready=True), name="s3"),
                endpoint_slice("another-service", pod("x", ready=True), name="s4"),
            ],
        }
    )
    fleet = new_fleet()
    source = KubernetesSource(fleet, cast("KubeApi", kube), namespace="llm", serving="qwen")
    task = asyncio.create_task(source.run())
    try:
        await asyncio.sleep(0.05)
        assert kube.selections["configmaps"].field_selector == "metadata.name=qwen-fleet"
        assert kube.selections["endpointslices"].label_selector == "duplex.dev/serving=qwen"
        assert fleet.document is not None
        assert fleet.document.version == (3, 41)
        assert {engine.key for engine in fleet.ready("one", Role.DECODE)} == {"d1", "d2"}
        await kube.send(CONFIG_MAPS, "MODIFIED", config_map(version=[2, 1]))
        assert "older" in fleet.broken
        await kube.send(CONFIG_MAPS, "MODIFIED", config_map(version=[3, 42], draining=["pod-d1"]))
        assert {engine.key for engine in fleet.ready("one", Role.DECODE)} == {"d2"}
        await kube.send(CONFIG_MAPS, "MODIFIED", {**config_map(), "data": {"fleet.json": "{"}})
        assert "cannot be read" in fleet.broken
        await kube.send(CONFIG_MAPS, "DELETED", config_map())
        assert "gone" in fleet.broken
        assert fleet.document.version == (3, 42)
        assert set(fleet.engines) == {"p1", "d1", "d2"}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
