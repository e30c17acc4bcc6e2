"""Recorded exchanges of engines, replayed through the decode leg in every split: the client gets the same each time."""

import json
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from duplex_router.turn.decode import DecodeLeg
from duplex_router.turn.legs import Answer, Failure
from duplex_router.wire.body import BodyReader
from duplex_router.wire.heads import HEAD_END, ResponseHead, parse_response_head
from duplex_router.wire.inference import Endpoint, parse_inference
from duplex_router.wire.params import MISS, read_handle
from duplex_router.wire.prefill import read_prefill_answer

FOLDER = Path(__file__).resolve().parents[1] / "exchanges"
NAMES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.json"))
EACH = pytest.mark.parametrize("name", NAMES)


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


def body_of(answer: str) -> tuple[ResponseHead, bytes]:
    head, _, body = answer.encode().partition(HEAD_END)
    return parse_response_head(head), body


def payload(head: ResponseHead, body: bytes) -> bytes:
    return BodyReader(length=head.length, chunked=head.chunked).feed(body)


class Listener:
    """Keeps what the client would get."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.answer: Answer | None = None
        self.done = self.complete = False

    def decode_failed(self, failure: Failure | Answer) -> None:
        raise AssertionError(failure)

    def decode_refused(self, answer: Answer) -> None:
        raise AssertionError(answer)

    def decode_streams(self, head: ResponseHead) -> None:
        assert head.status == HTTPStatus.OK

    def decode_part(self, data: bytes) -> None:
        self.parts.append(data)

    def decode_complete(self) -> None:
        self.complete = True

    def decode_done(self, answer: Answer | None) -> None:
        self.answer, self.done = answer, True

    def decode_broke(self, failure: Failure) -> None:
        raise AssertionError(failure)


def replay(endpoint: Endpoint, head: ResponseHead, pieces: list[bytes]) -> tuple[bytes, bytes | None, str]:
    """Return what the client gets, the handle, and the reply that was read."""
    listener = Listener()
    leg = DecodeLeg(listener, endpoint, 1.0)
    leg.answered(head)
    for piece in pieces:
        leg.received(piece)
    assert listener.done
    assert listener.complete or listener.answer is not None or leg.observer.handle is None
    if listener.answer is not None:
        shown = listener.answer.body
    else:
        shown = BodyReader(length=None, chunked=True).feed(b"".join(listener.parts))
    return shown, leg.observer.handle, leg.observer.reply.text


@EACH
def test_every_split_gives_the_same(name: str) -> None:
    found = recorded(name)
    endpoint = Endpoint(found["path"])
    head, body = body_of(found["decode"]["answer"])
    whole = replay(endpoint, head, [body])
    assert replay(endpoint, head, [bytes([byte]) for byte in body]) == whole
    for cut in range(1, len(body)):
        assert replay(endpoint, head, [body[:cut], body[cut:]]) == whole


@EACH
def test_the_client_gets_all_but_the_handle(name: str) -> None:
    found = recorded(name)
    head, body = body_of(found["decode"]["answer"])
    shown, handle, _ = replay(Endpoint(found["path"]), head, [body])
    told = found["path"] != Endpoint.MESSAGES or not found["request"].get("stream")
    assert (handle is not None) is told
    sent = payload(head, body)
    if found["request"].get("stream"):
        assert shown == (sent.replace(handle, b"null") if handle is not None else sent)
    else:
        assert json.loads(shown) == {**json.loads(sent), "kv_transfer_params": None}
    assert b"remote_" not in shown
    if handle is not None:
        assert read_handle(handle).tokens > 0


@EACH
def test_the_legs_are_what_the_router_sends(name: str) -> None:
    found = recorded(name)
    request = parse_inference(Endpoint(found["path"]), json.dumps(found["request"]).encode())
    assert json.loads(b"".join(request.prefill_body(MISS))) == found["prefill"]["sent"]
    answer = read_prefill_answer(payload(*body_of(found["prefill"]["answer"])))
    assert not answer.failed
    assert answer.prompt_tokens > 0
    hand_off = json.loads(answer.hand_off or b"{}")
    sent = found["decode"]["sent"]
    assert {**sent.pop("kv_transfer_params"), "duplex": hand_off.get("duplex")} == hand_off
    assert json.loads(b"".join(request.decode_body(None))) == sent


def test_there_are_exchanges_of_every_endpoint_streamed_and_not() -> None:
    kinds = {(recorded(name)["path"], bool(recorded(name)["request"].get("stream"))) for name in NAMES}
    assert kinds == {(endpoint, stream) for endpoint in Endpoint for stream in (True, False)}
