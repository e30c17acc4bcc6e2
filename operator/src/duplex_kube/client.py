"""``KubeApi`` on the asyncio client that the official ``kubernetes`` package brings. The only file that knows it.

That client is labelled experimental, so only its configuration loading and its transport are used: no generated
models (they cost eight times the JSON) and no generated methods.
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from duplex_kube.api import KubeObject, ListPage, Preconditions, Resource, Selection, WatchEvent, WriteGuard
from duplex_kube.errors import RETRYABLE, KubeError, TransientError, error_from_status

JSON = "application/json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML; this is the type that every supported server takes
ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=30, connect=10)
WATCH_SILENCE_SECONDS = 100  # bookmarks come about once a minute: longer silence is a half-dead connection


@dataclass(frozen=True, slots=True)
class Credentials:
    """What another HTTP client needs to reach the same cluster as the same user. Paths and token are None if not used.

    ``token`` is the bare bearer token.
    """

    server: str
    authority_path: str | None
    certificate_path: str | None
    private_key_path: str | None
    token: str | None
    verify: bool


class ConnectError(Exception):
    """There is no usable configuration to reach a cluster with. The message says what was tried."""


async def connect(kubeconfig: Path | None = None, *, user_agent: str, connections: int = 64) -> "Client":
    """Make a client for the cluster of ``kubeconfig``, of the pod we run in, of $KUBECONFIG or of ~/.kube/config.

    The first of these that there is. ``connections`` bounds requests in flight, watches included. A token that an exec
    plugin made is not renewed: where processes live long, they run in the cluster. Close with ``close``.
    """
    configuration = Configuration(connection_pool_maxsize=connections)
    try:
        if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            load_incluster_config(client_configuration=configuration)
        else:
            # Resolved here because the library reads the variable when it is imported, not when it is called.
            path = str(kubeconfig or os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
            await load_kube_config(config_file=path, client_configuration=configuration, persist_config=False)
    except (ConfigException, OSError) as error:
        raise ConnectError(f"cannot reach a cluster: {error}; give a kubeconfig, or run inside a pod") from error
    api_client = ApiClient(configuration)
    api_client.user_agent = user_agent
    return Client(api_client)


class Client:
    """``KubeApi`` for one cluster.

    Requests that may be repeated without harm (all but ``create``) are repeated on throttling, on 5xx and when no
    answer comes, with growing pauses or the one that the server asks for.
    """

    def __init__(self, api_client: ApiClient, guard: WriteGuard | None = None) -> None:
        self._api_client = api_client
        self._guard = guard

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, those of guarded copies included."""
        await self._api_client.close()

    async def credentials(self) -> Credentials:
        """Return what this client authenticates with now; a token is read anew when it may have been renewed."""
        configuration = self._api_client.configuration
        setting = (await configuration.auth_settings()).get("BearerToken") or {}
        header = str(setting.get("value") or "")
        return Credentials(
            server=configuration.host,
            authority_path=configuration.ssl_ca_cert,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            token=header.partition(" ")[2] or None,
            verify=configuration.verify_ssl,
        )

    def guarded(self, guard: WriteGuard) -> "Client":
        """See ``KubeApi.guarded``."""
        return Client(self._api_client, guard)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> KubeObject:
        """See ``KubeApi.get``."""
        return await self._request("GET", resource.path(namespace, name))

    async def list(
        self, resource: Resource, selection: Selection, *, limit: int = 500, continue_token: str = ""
    ) -> ListPage:
        """See ``KubeApi.list``."""
        query = _query(selection, limit=limit, **{"continue": continue_token})
        body = await self._request("GET", resource.path(selection.namespace) + query)
        metadata = body.get("metadata") or {}
        return ListPage(body.get("items") or [], metadata.get("resourceVersion", ""), metadata.get("continue") or "")

    async def watch(
        self, resource: Resource, selection: Selection, *, resource_version: str, timeout_seconds: int = 300
    ) -> AsyncGenerator[WatchEvent, None]:
        """See ``KubeApi.watch``."""
        query = _query(
            selection,
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=timeout_seconds,
        )
        limits = aiohttp.ClientTimeout(total=None, connect=10, sock_read=WATCH_SILENCE_SECONDS)
        try:
            response = await self._send("GET", resource.path(selection.namespace) + query, None, JSON, limits)
            try:
                await _raise_for_status(response)
                async for line in _lines(response.content):
                    yield _watch_event(line)
            finally:
                response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TransientError(f"watch of {resource.plural} broke: {error!r}") from error

    async def apply(self, obj: KubeObject, resource: Resource, *, field_manager: str) -> KubeObject:
        """See ``KubeApi.apply``."""
        return await self._apply(obj, resource, "", field_manager)

    async def apply_status(self, obj: KubeObject, resource: Resource, *, field_manager: str) -> KubeObject:
        """See ``KubeApi.apply_status``."""
        return await self._apply(obj, resource, "status", field_manager)

    async def create(self, obj: KubeObject, resource: Resource) -> KubeObject:
        """See ``KubeApi.create``."""
        return await self._request("POST", resource.path(obj["metadata"].get("namespace")), obj, attempts=1)

    async def replace(self, obj: KubeObject, resource: Resource) -> KubeObject:
        """See ``KubeApi.replace``."""
        metadata = obj["metadata"]
        return await self._request("PUT", resource.path(metadata.get("namespace"), metadata["name"]), obj)

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, preconditions: Preconditions | None = None
    ) -> None:
        """See ``KubeApi.delete``."""
        wanted = preconditions or Preconditions()
        body: KubeObject = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        named = {"uid": wanted.uid, "resourceVersion": wanted.resource_version}
        body["preconditions"] = {key: value for key, value in named.items() if value is not None}
        await self._request("DELETE", resource.path(namespace, name), body)

    async def _apply(self, obj: KubeObject, resource: Resource, subresource: str, field_manager: str) -> KubeObject:
        metadata = obj["metadata"]
        query = "?" + urlencode({"fieldManager": field_manager, "force": "true"})
        path = resource.path(metadata.get("namespace"), metadata["name"], subresource) + query
        return await self._request("PATCH", path, obj, content_type=APPLY_PATCH)

    async def _request(
        self,
        method: str,
        path: str,
        body: KubeObject | None = None,
        *,
        content_type: str = JSON,
        attempts: int = ATTEMPTS,
    ) -> KubeObject:
        for attempt in range(attempts):
            try:
                return await self._request_once(method, path, body, content_type)
            except RETRYABLE as error:
                if attempt + 1 == attempts:
                    raise
                await asyncio.sleep(_pause(attempt, error))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _request_once(self, method: str, path: str, body: KubeObject | None, content_type: str) -> KubeObject:
        if self._guard is not None and method != "GET":
            self._guard()
        try:
            response = await self._send(method, path, body, content_type, REQUEST_TIMEOUT)
            async with response:
                await _raise_for_status(response)
                answer: KubeObject = json.loads(await response.read())
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError, json.JSONDecodeError) as error:
            raise TransientError(f"{method} {path.partition('?')[0]}: no answer: {error!r}") from error

    async def _send(
        self, method: str, path: str, body: KubeObject | None, content_type: str, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        request = await self._api_client.param_serialize(
            method,
            path,
            header_params={"Content-Type": content_type, "Accept": JSON},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._api_client.call_api(*request, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        return response


def _query(selection: Selection, **more: Any) -> str:  # noqa: ANN401 - strings and numbers alike become text
    named = {"labelSelector": selection.label_selector, "fieldSelector": selection.field_selector, **more}
    return "?" + urlencode({key: value for key, value in named.items() if value})


def _pause(attempt: int, error: KubeError) -> float:
    grown: float = min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS)
    jittered = grown * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
    return max(jittered, min(error.retry_after or 0.0, LONGEST_PAUSE_SECONDS))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        return float(headers["Retry-After"])
    except (KeyError, ValueError):  # absent, or the date form, which the API server does not send
        return None


async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
    if response.status < HTTPStatus.BAD_REQUEST:
        return
    raw = await response.read()
    try:
        status = json.loads(raw)
    except json.JSONDecodeError:
        status = {"message": raw[:500].decode(errors="replace")}
    if not isinstance(status, dict):
        status = {"message": str(status)[:500]}
    raise error_from_status(response.status, status, retry_after=_retry_after(response.headers))


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Split by hand: the reader's own ``readline`` fails on objects larger than its buffer."""
    pending = bytearray()
    async for chunk in content.iter_any():
        pending += chunk
        *complete, rest = pending.split(b"\n")
        pending = bytearray(rest)
        for line in complete:
            if line:
                yield bytes(line)


def _watch_event(line: bytes) -> WatchEvent:
    try:
        raw = json.loads(line)
    except json.JSONDecodeError as error:
        raise TransientError("watch stream broke within an event") from error
    if raw["type"] == "ERROR":
        raise error_from_status(int(raw["object"].get("code") or 0), raw["object"])
    return WatchEvent(raw["type"], raw["object"])
