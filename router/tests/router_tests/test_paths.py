"""What is passed on, to whom, and in what shape; which models the fleet serves."""

import json
from pathlib import Path
from typing import Any

import pytest

from duplex_connector.contract import ConnectorKind, Role
from duplex_router.fleet.models import Models, read_cards
from duplex_router.http.paths import PASSED

from .raw_site import get, parts, post, site, whole
from .rig import MODEL, Engines, launch, router, running, until, user

REFUSAL = {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}


async def echo(body: dict[str, Any], writer: Any) -> None:
    writer.write(whole({"seen": body}))


@pytest.mark.parametrize("path", sorted(path.decode() for path, passed in PASSED.items() if b"POST" in passed.methods))
async def test_a_passed_request_comes_through_as_it_is(tmp_path: Path, path: str) -> None:
    async with site(tmp_path) as under_test:
        under_test.prefill.handler = under_test.decode.handler = echo
        status, _, body = parts(await under_test.exchange(post({"a": [1]}, path, "content-type: application/x-own")))
        assert (status, json.loads(body)) == (200, {"seen": {"a": [1]}})
        served = under_test.prefill if PASSED[path.encode()].role is Role.PREFILL else under_test.decode
        asked = [request for request in served.requests if request[0] == path]
        assert asked[0][1][b"content-type"] == b"application/x-own"


async def test_an_engines_refusal_is_put_into_anthropics_words(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:

        async def refuse(_: dict[str, Any], writer: Any) -> None:
            writer.write(whole(REFUSAL, "400 Bad Request"))

        under_test.prefill.handler = refuse
        _, _, body = parts(await under_test.exchange(post({}, "/v1/messages/count_tokens")))
        assert json.loads(body)["error"] == {"type": "invalid_request_error", "message": "too long"}
        _, _, body = parts(await under_test.exchange(post({}, "/v1/embeddings")))
        assert json.loads(body) == REFUSAL


@pytest.mark.parametrize(
    "path",
    [
        "/inference/v1/generate",
        "/v1/chat/completions/batch",
        "/cohere/v2/chat",
        "/v1/load_lora_adapter",
        "/sleep",
        "/collective_rpc",
        "/v1/unknown",
    ],
)
async def test_what_is_not_here_touches_no_engine(tmp_path: Path, path: str) -> None:
    async with site(tmp_path) as under_test:
        status, _, body = parts(await under_test.exchange(post({}, path)))
        assert (status, json.loads(body)["error"]["type"]) == (404, "not_found_error")
        assert under_test.touched == 0


async def test_methods_and_absences_are_told_in_each_apis_shape(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        status, headers, body = parts(await under_test.exchange(get("/v1/messages")))
        assert (status, headers[b"allow"]) == (405, b"POST, OPTIONS")
        assert json.loads(body)["type"] == "error"
        status, headers, body = parts(await under_test.exchange(get("/v1/messages", "OPTIONS")))
        assert (status, headers[b"allow"], body) == (204, b"POST, OPTIONS", b"")
        status, headers, body = parts(await under_test.exchange(get("/v1/models", "HEAD")))
        assert (status, int(headers[b"content-length"]) > 0, body) == (200, True, b"")
        _, _, body = parts(await under_test.exchange(get("/v1/responses/resp_1")))
        assert "not stored" in json.loads(body)["error"]["message"]


async def test_adapters_are_listed_and_may_be_named(tmp_path: Path) -> None:
    lora = ("--enable-lora", "--lora-modules", "org/tuned=/adapters/tuned")
    prefill, decode = (launch(role, ConnectorKind.GUARDED, *lora) for role in (Role.PREFILL, Role.DECODE))
    with running(prefill, decode):
        engines = Engines(ConnectorKind.GUARDED, [prefill], [decode])
        async with router(tmp_path, engines.document()) as under_test:
            await until(lambda: under_test.service.core.models.serves("org/tuned", MODEL))
            client = under_test.client()
            listed = {model.id: model.model_extra for model in (await client.models.list()).data}
            assert listed.keys() == {MODEL, "org/tuned"}
            assert (listed["org/tuned"] or {})["parent"] == MODEL
            assert (listed[MODEL] or {})["max_model_len"] > 0
            assert (await client.models.retrieve("org/tuned")).id == "org/tuned"
            create: Any = client.chat.completions.create
            answer = await create(model="org/tuned", messages=[user("x")], max_tokens=5)
            assert answer.model == "org/tuned"
        assert engines.corrupt() == 0


def test_cards_show_no_paths() -> None:
    models = Models()
    models.take(read_cards(b'{"data":[{"id":"m","root":"/secret","owned_by":"vllm","created":7}]}'))
    assert models.listed("m") == [{"id": "m", "object": "model", "created": 7, "owned_by": "duplex"}]
    assert not models.serves("other", "m")
