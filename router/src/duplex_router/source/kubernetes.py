"""The fleet from Kubernetes: the ConfigMap `<serving>-fleet`, and the EndpointSlices of the serving's engines."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from duplex_connector.contract import FLEET_KEY, Label, Port
from duplex_kube.api import CONFIG_MAPS, ENDPOINT_SLICES, KubeApi, KubeObject, Selection
from duplex_kube.reflector import Change, Reflector
from duplex_router.fleet.document import FleetError, read_document
from duplex_router.fleet.engines import Endpoint
from duplex_router.fleet.fleet import Fleet

SERVICE_NAME = "kubernetes.io/service-name"
API_PORT_NAMES = ("http", "api", "")

log = logging.getLogger(__name__)

Slice = tuple[str, tuple[Endpoint, ...]]
"""The Service that an EndpointSlice belongs to, and its endpoints."""


def read_config_map(obj: KubeObject) -> str:
    """Return the fleet document's text; empty where the ConfigMap has none."""
    return str((obj.get("data") or {}).get(FLEET_KEY, ""))


def read_slice(obj: KubeObject) -> Slice:
    """Return the Service and the endpoints of an EndpointSlice (discovery.k8s.io/v1)."""
    service = obj["metadata"].get("labels", {}).get(SERVICE_NAME, "")
    port = _port(obj.get("ports") or [])
    endpoints = [_endpoint(each, port) for each in obj.get("endpoints") or [] if each.get("addresses")]
    return service, tuple(endpoints)


def _port(ports: list[dict[str, Any]]) -> int:
    for name in API_PORT_NAMES:
        for port in ports:
            if (port.get("name") or "") == name and port.get("port"):
                return int(port["port"])
    return Port.API


def _endpoint(raw: dict[str, Any], port: int) -> Endpoint:
    conditions = raw.get("conditions") or {}
    target = raw.get("targetRef") or {}
    address = raw["addresses"][0]
    ready = conditions.get("ready") is not False  # unknown counts as ready, by the API's definition
    serving = conditions.get("serving")
    return Endpoint(
        key=target.get("uid") or f"{address}:{port}",
        host=address,
        port=port,
        pod=target.get("name") or "",
        ready=ready and not conditions.get("terminating"),
        serving=ready if serving is None else bool(serving),
    )


class KubernetesSource:
    """Feeds a fleet from two watches. What is lost with a broken watch is only news: the last state stays in use."""

    def __init__(self, fleet: Fleet, api: KubeApi, *, namespace: str, serving: str) -> None:
        self._fleet = fleet
        self._name = f"{serving}-fleet"
        self._slices: dict[tuple[str, str], Slice] = {}
        by_name = Selection(namespace, field_selector=f"metadata.name={self._name}")
        self._documents = Reflector(api, CONFIG_MAPS, by_name, trim=read_config_map, on_change=self._document_changed)
        by_label = Selection(namespace, label_selector=f"{Label.SERVING}={serving}")
        self._endpoints = Reflector(api, ENDPOINT_SLICES, by_label, trim=read_slice, on_change=self._slice_changed)

    def _document_changed(self, change: Change[str]) -> None:
        if not change.new:
            self._refuse(f"the ConfigMap {self._name} is gone or has no {FLEET_KEY}")
            return
        try:
            document = read_document(change.new.encode())
            if self._fleet.take_document(document):
                log.info("fleet document %s taken", list(document.version))
            else:
                log.warning("fleet document: %s", self._fleet.broken)
        except FleetError as error:
            self._refuse(f"ConfigMap {self._name}: {error}")

    def _refuse(self, why: str) -> None:
        log.error("%s; the last good document stays in use", why)
        self._fleet.refuse_document(why)

    def _slice_changed(self, change: Change[Slice]) -> None:
        touched = {each[0] for each in (change.old, change.new) if each is not None}
        if change.new is None:
            self._slices.pop(change.key, None)
        else:
            self._slices[change.key] = change.new
        for service in touched:
            endpoints = {each.key: each for name, part in self._slices.values() if name == service for each in part}
            self._fleet.take_service(service, list(endpoints.values()))

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._documents.run())
            group.create_task(self._endpoints.run())
