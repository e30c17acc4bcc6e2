"""The client against a scripted server: what goes over the wire, what is repeated, how errors are classified."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from duplex_kube import client as client_module
from duplex_kube import errors
from duplex_kube.api import CONFIG_MAPS, DEPLOYMENTS, PODS, Preconditions, Selection
from duplex_kube.client import Client, ConnectError, connect

from .http_server import Answer, ScriptedServer, scripted_server, write_kubeconfig

DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d", "namespace": "n"},
    "spec": {"replicas": 1},
}


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server() as running:
        yield running


@pytest.fixture
async def client(server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(client_module, "FIRST_PAUSE_SECONDS", 0.001)
    config = write_kubeconfig(tmp_path / "config", server.url)
    async with await connect(config, user_agent="duplex-test") as connected:
        yield connected


async def test_apply_is_a_forced_server_side_apply(client: Client, server: ScriptedServer) -> None:
    server.script.append(Answer(body={**DEPLOYMENT, "status": {}}))
    answer = await client.apply(DEPLOYMENT, DEPLOYMENTS, field_manager="duplex")
    assert answer["status"] == {}
    request = server.requests[0]
    assert (request.method, request.path) == ("PATCH", "/apis/apps/v1/namespaces/n/deployments/d")
    assert request.query == {"fieldManager": "duplex", "force": "true"}
    assert request.content_type == "application/apply-patch+yaml"
    assert request.body == DEPLOYMENT


async def test_apply_status_goes_to_the_subresource(client: Client, server: ScriptedServer) -> None:
    server.script.append(Answer(body={}))
    await client.apply_status(DEPLOYMENT, DEPLOYMENTS, field_manager="duplex-status")
    assert server.requests[0].path == "/apis/apps/v1/namespaces/n/deployments/d/status"


@pytest.mark.parametrize(("status", "kind"), [(429, errors.ThrottledError), (503, errors.TransientError)])
async def test_repeats_what_may_be_repeated(
    client: Client, server: ScriptedServer, status: int, kind: type[errors.KubeError]
) -> None:
    server.script.extend([Answer(status, {"message": "busy"}), Answer(body={"ok": True})])
    assert await client.apply(DEPLOYMENT, DEPLOYMENTS, field_manager="m") == {"ok": True}
    assert len(server.requests) == 2
    server.script.extend([Answer(status, {"message": "busy"})] * client_module.ATTEMPTS)
    with pytest.raises(kind, match="busy"):
        await client.apply(DEPLOYMENT, DEPLOYMENTS, field_manager="m")
    assert len(server.requests) == 2 + client_module.ATTEMPTS


async def test_create_is_sent_once_because_a_lost_answer_may_hide_a_success(
    client: Client, server: ScriptedServer
) -> None:
    server.script.extend([Answer(503, {"message": "busy"}), Answer(body={})])
    with pytest.raises(errors.TransientError):
        await client.create(DEPLOYMENT, DEPLOYMENTS)
    assert len(server.requests) == 1


async def test_waits_as_long_as_the_server_asks() -> None:
    asked = errors.ThrottledError("busy", retry_after=3.0)
    assert client_module._pause(0, asked) == 3.0
    assert client_module._pause(0, errors.ThrottledError("busy", retry_after=1e6)) == 10.0
    assert client_module._pause(30, errors.TransientError("x")) <= 10.0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidError),
        (401, errors.ForbiddenError),
        (403, errors.ForbiddenError),
        (404, errors.NotFoundError),
        (409, errors.ConflictError),
        (410, errors.GoneError),
        (422, errors.InvalidError),
    ],
)
async def test_errors_are_classified_and_keep_the_servers_words(
    client: Client, server: ScriptedServer, status: int, kind: type[errors.KubeError]
) -> None:
    server.script.append(Answer(status, {"kind": "Status", "message": "spec.x: no", "reason": "Because"}))
    with pytest.raises(kind, match=r"spec\.x: no") as caught:
        await client.get(DEPLOYMENTS, "n", "d")
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.reason) == (status, "Because")
    assert len(server.requests) == 1


async def test_an_answer_that_is_no_status_object_is_still_an_error(client: Client, server: ScriptedServer) -> None:
    server.script.append(Answer(404, None, chunks=[b"404 page not found"]))
    with pytest.raises(errors.NotFoundError, match="404 page not found"):
        await client.get(DEPLOYMENTS, "n", "d")


async def test_no_server_is_transient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_PAUSE_SECONDS", 0.001)
    config = write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1")
    async with await connect(config, user_agent="t") as connected:
        with pytest.raises(errors.TransientError):
            await connected.get(PODS, "n", "p")


async def test_a_missing_kubeconfig_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(ConnectError, match="give a kubeconfig"):
        await connect(user_agent="t")


async def test_list_pages_and_selects(client: Client, server: ScriptedServer) -> None:
    server.script.append(
        Answer(body={"metadata": {"resourceVersion": "7", "continue": "next"}, "items": [{"metadata": {"name": "a"}}]})
    )
    page = await client.list(PODS, Selection("n", label_selector="a=b,c in (d)"), limit=1, continue_token="t")
    assert (page.resource_version, page.continue_token) == ("7", "next")
    assert server.requests[0].query == {"labelSelector": "a=b,c in (d)", "limit": "1", "continue": "t"}


async def test_delete_names_the_object_it_means(client: Client, server: ScriptedServer) -> None:
    server.script.append(Answer(body={}))
    await client.delete(CONFIG_MAPS, "n", "c", preconditions=Preconditions(uid="u1"))
    assert server.requests[0].body["preconditions"] == {"uid": "u1"}
    assert server.requests[0].body["propagationPolicy"] == "Background"


async def test_the_guard_stands_before_every_write_and_every_repeat(client: Client, server: ScriptedServer) -> None:
    allowed = [True, False]

    class LostError(Exception):
        pass

    def guard() -> None:
        if not allowed.pop(0):
            raise LostError

    fenced = client.guarded(guard)
    server.script.extend([Answer(503, {}), Answer(body={})])
    with pytest.raises(LostError):
        await fenced.apply(DEPLOYMENT, DEPLOYMENTS, field_manager="m")
    assert len(server.requests) == 1
    assert allowed == []
    assert await fenced.get(DEPLOYMENTS, "n", "d") == {}  # reads are not writes


def event(kind: str, name: str, version: str, **more: object) -> bytes:
    metadata = {"name": name, "namespace": "n", "resourceVersion": version}
    return json.dumps({"type": kind, "object": {"metadata": metadata, **more}}).encode() + b"\n"


async def test_watch_splits_lines_across_chunks_and_objects_larger_than_any_buffer(
    client: Client, server: ScriptedServer
) -> None:
    large = event("ADDED", "large", "2", data="x" * 5_000_000)
    stream = event("ADDED", "small", "1") + large
    server.script.append(Answer(chunks=[stream[:20], stream[20:100], stream[100:]]))
    async with aclosing(client.watch(PODS, Selection("n"), resource_version="0", timeout_seconds=9)) as events:
        seen = [e async for e in events]
    assert [(e.type, e.object["metadata"]["name"]) for e in seen] == [("ADDED", "small"), ("ADDED", "large")]
    assert server.requests[0].query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "0",
        "timeoutSeconds": "9",
    }


async def test_watch_raises_the_servers_error_event_as_its_class(client: Client, server: ScriptedServer) -> None:
    gone = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}).encode()
    server.script.append(Answer(chunks=[gone + b"\n"]))
    with pytest.raises(errors.GoneError, match="too old"):
        [e async for e in client.watch(PODS, Selection(), resource_version="1")]


async def test_a_silent_watch_is_given_up(
    client: Client, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "WATCH_SILENCE_SECONDS", 0.05)
    server.script.append(Answer(chunks=[event("ADDED", "a", "1")], hang=True))
    stream = client.watch(PODS, Selection(), resource_version="1")
    assert (await anext(stream)).type == "ADDED"
    with pytest.raises(errors.TransientError):
        await anext(stream)
