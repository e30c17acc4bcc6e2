"""API keys and TLS, on both sides, and their renewal while the router runs."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from pathlib import Path

import pytest

from duplex_router.cli import parse_arguments
from duplex_router.http.credentials import CredentialError, Credentials
from duplex_router.http.settings import CredentialSettings

from .certificates import Authority
from .raw_site import OK_CHAT, Site, get, parts, post, read_answer, site

CHAT = "/v1/chat/completions"


def rewrite(path: Path, content: bytes) -> None:
    """Replace a file as a mounted Secret is replaced, whatever the clock's resolution."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.rename(path)


async def status(under_test: Site, *headers: str, path: str = CHAT) -> int:
    return parts(await under_test.exchange(post(OK_CHAT, path, *headers)))[0]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "first").write_bytes(b"one\n\ntwo\n")
    (folder / "second").write_bytes(b"three")
    (folder / "..data").mkdir()
    return folder


async def test_clients_must_show_a_key(tmp_path: Path, keys: Path) -> None:
    async with site(tmp_path, credentials=CredentialSettings(api_keys=keys)) as under_test:
        refused = [(), ("authorization: Bearer wrong",), ("authorization: Basic one",), ("authorization: Bearer ",)]
        for headers in [*refused, ("x-api-key: wrong",), ("authorization: Bearer wrong", "x-api-key: one")]:
            code, told, body = parts(await under_test.exchange(post(OK_CHAT, CHAT, *headers)))
            assert code == 401, headers
            assert told[b"www-authenticate"] == b"Bearer"
            assert json.loads(body)["error"]["type"] == "authentication_error"
        assert await status(under_test, path="/v1/nothing") == 401
        assert parts(await under_test.exchange(get("/v1/models")))[0] == 401
        assert under_test.touched == 0
        assert parts(await under_test.exchange(get("/health")))[0] == 200
        for key in ("one", "two", "three"):
            assert await status(under_test, f"authorization: Bearer {key}") == 200
            assert await status(under_test, f"x-api-key: {key}") == 200


async def test_a_request_without_a_key_is_refused_before_its_body(tmp_path: Path, keys: Path) -> None:
    async with site(tmp_path, credentials=CredentialSettings(api_keys=keys)) as under_test:
        answer = await under_test.exchange(post()[:-20])
        assert parts(answer)[0] == 401
        assert parts(answer)[1][b"connection"] == b"close"


async def test_keys_are_read_again_when_they_change(tmp_path: Path, keys: Path) -> None:
    async with site(tmp_path, credentials=CredentialSettings(api_keys=keys)) as under_test:
        shown = "authorization: Bearer one"
        assert await status(under_test, shown) == 200
        rewrite(keys / "first", b"new")
        under_test.router.service.credentials.refresh()
        assert await status(under_test, shown) == 401
        assert await status(under_test, "authorization: Bearer new") == 200
        rewrite(keys / "first", b"")
        (keys / "second").unlink()
        under_test.router.service.credentials.refresh()
        assert await status(under_test, "authorization: Bearer new") == 200, "no key at all is a mistake: the last stay"


async def test_engines_get_their_own_key_with_everything_and_never_a_clients(tmp_path: Path, keys: Path) -> None:
    engine_key = tmp_path / "engine"
    engine_key.write_bytes(b"inner\n")
    settings = CredentialSettings(api_keys=keys, engine_key=engine_key)
    async with site(tmp_path, credentials=settings) as under_test:
        for _ in range(2):  # the second replaces the hold of the first, which is released
            await under_test.exchange(post(OK_CHAT, CHAT, "authorization: Bearer one"))
        await under_test.exchange(post({"prompt": "x"}, "/tokenize", "authorization: Bearer one"))
        await asyncio.sleep(0.05)
        seen = [*under_test.prefill.requests, *under_test.decode.requests]
        assert {path for path, _, _ in seen} >= {CHAT, "/tokenize", "/v1/completions"}
        assert any(body.get("model") == "duplex-lease" for _, _, body in seen)
        assert {headers[b"authorization"] for _, headers, _ in seen} == {b"Bearer inner"}


async def test_a_clients_key_that_the_router_checks_does_not_reach_engines(tmp_path: Path, keys: Path) -> None:
    async with site(tmp_path, credentials=CredentialSettings(api_keys=keys)) as under_test:
        await under_test.exchange(post(OK_CHAT, CHAT, "authorization: Bearer one"))
        assert all(b"authorization" not in headers for _, headers, _ in under_test.prefill.requests)


async def test_a_key_of_anthropics_kind_reaches_engines_as_they_read_it(tmp_path: Path) -> None:
    async with site(tmp_path) as under_test:
        await under_test.exchange(post(OK_CHAT, CHAT, "x-api-key: k"))
        assert under_test.prefill.requests[0][1][b"authorization"] == b"Bearer k"


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.path)


async def talk(port: int, context: ssl.SSLContext, wire: bytes) -> tuple[bytes, bytes]:
    """Return the answer over TLS, and the certificate that the server showed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.write(wire)
    answer = await read_answer(reader)
    writer.transport.abort()
    return answer, shown


async def test_tls_towards_clients_and_its_renewal(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("router")
    settings = CredentialSettings(certificate=certificate, private_key=key)
    async with site(tmp_path, credentials=settings) as under_test:
        port, trust = under_test.router.service.port, trusting(authority)
        answer, first = await talk(port, trust, post({**OK_CHAT, "stream": True}, close=False))
        assert b"hello" in answer
        big = {"model": "m", "messages": [{"role": "user", "content": "x" * 500_000}]}
        assert parts((await talk(port, trust, post(big)))[0])[0] == 200
        other, other_key = authority.sign("renewed")
        rewrite(certificate, other.read_bytes())
        under_test.router.service.credentials.refresh()
        assert (await talk(port, trust, get("/health")))[1] == first, "half of a pair is not used"
        rewrite(key, other_key.read_bytes())
        under_test.router.service.credentials.refresh()
        assert (await talk(port, trust, get("/health")))[1] != first
        assert b"HTTP/" not in await under_test.exchange(get("/health")), "nothing is answered in the clear"


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("shows", [True, False])
async def test_mutual_tls_towards_engines(tmp_path: Path, trusted: bool, shows: bool) -> None:  # noqa: FBT001 - parameters of the test
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.path)
    server.load_cert_chain(*authority.sign("engine"))
    server.verify_mode = ssl.CERT_REQUIRED
    certificate, key = authority.sign("router") if shows else (None, None)
    settings = CredentialSettings(
        engine_ca=(authority if trusted else stranger).path, engine_certificate=certificate, engine_private_key=key
    )
    async with site(tmp_path, credentials=settings, engine_tls=server) as under_test:
        code = await status(under_test)
        assert (code == 200) is (trusted and shows)
        assert bool(under_test.touched) is (trusted and shows)


def test_what_cannot_be_read_at_the_start_is_said(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"\n")
    with pytest.raises(CredentialError, match="holds no key"):
        Credentials(CredentialSettings(api_keys=empty))
    with pytest.raises(CredentialError, match="certificate"):
        Credentials(CredentialSettings(certificate=empty, private_key=empty))
    with pytest.raises(CredentialError, match="engines' API key"):
        Credentials(CredentialSettings(engine_key=tmp_path / "missing"))


@pytest.mark.parametrize("half", ["--tls-cert", "--tls-key", "--engine-cert", "--engine-cert-key"])
def test_half_a_pair_on_the_command_line_is_refused(half: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--fleet", os.devnull, half, "file"])
    assert "belong together" in capsys.readouterr().err
