"""A transport and a client that a test plays by hand, so that a turn meets exactly what the test wants."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from duplex_connector.contract import ConnectorKind
from duplex_router.fleet.document import FleetDocument, convert_document
from duplex_router.fleet.engines import Engine
from duplex_router.fleet.fleet import Fleet
from duplex_router.ledger.fates import Fate
from duplex_router.ledger.ledger import Ledger
from duplex_router.turn.admission import QueueSettings
from duplex_router.turn.core import Core
from duplex_router.turn.counters import Counters
from duplex_router.turn.keeper import Keeper
from duplex_router.turn.legs import Failure, Receiver
from duplex_router.turn.subject import Subject
from duplex_router.turn.turn import Turn
from duplex_router.wire.body import LAST_CHUNK, chunk
from duplex_router.wire.heads import Headers, ResponseHead
from duplex_router.wire.inference import Endpoint, parse_inference
from duplex_router.wire.scanner import Lane

from .handles import handle_fields
from .test_ledger import Clock

Json = dict[str, Any]


@dataclass(eq=False)
class Call:
    """One request that an engine got."""

    engine: Engine
    body: Json
    receiver: Receiver
    repeatable: bool
    sent: bool = True
    aborted: bool = False
    reusable: bool | None = None
    paused: bool = False
    lane: Lane | None = None

    def abort(self) -> None:
        self.aborted = True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def expect_by(self, seconds: float) -> None:
        assert seconds > 0

    def by(self, lane: Lane | None) -> None:
        self.lane = lane

    def finished(self, *, reusable: bool) -> None:
        self.reusable = reusable

    def receive(self, data: bytes) -> None:
        if self.lane is None or not self.lane(data):
            self.receiver.received(data)

    @property
    def params(self) -> Json:
        found: Json = self.body["kv_transfer_params"]
        return found

    @property
    def is_lease(self) -> bool:
        return self.body.get("model") == "duplex-lease"

    def answer(self, body: Json, status: int = 200) -> None:
        raw = json.dumps(body).encode()
        head = ResponseHead(status, [(b"content-type", b"application/json")], length=len(raw))
        self.receiver.answered(head)
        self.receiver.received(raw)

    def prefilled(self, name: str = "p", *, prompt_tokens: int = 50, **report: Any) -> None:
        params = {"remote_request_id": name, "do_remote_prefill": True, "remote_prefill_cached_tokens": 0}
        if report:
            params["duplex"] = report
        choices = [{"finish_reason": "length"}]
        self.answer({"choices": choices, "usage": {"prompt_tokens": prompt_tokens}, "kv_transfer_params": params})

    def start_stream(self) -> None:
        self.receiver.answered(ResponseHead(200, [(b"content-type", b"text/event-stream")], chunked=True))

    def event(self, value: Json) -> None:
        self.receive(chunk(b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"))

    def say(self, text: str) -> None:
        self.event({"choices": [{"index": 0, "delta": {"content": text}}], "kv_transfer_params": None})

    def hand_over(self, **handle: Any) -> None:
        last = {"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}
        self.event({"choices": [last], "kv_transfer_params": handle_fields(**handle)})

    def say_done(self) -> None:
        self.receive(chunk(b"data: [DONE]\n\n"))

    def end(self) -> None:
        self.receive(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)

    def stream(self, text: str = "Hi.", **handle: Any) -> None:
        self.start_stream()
        self.say(text)
        self.hand_over(**handle)
        self.end()

    def fail(self, failure: Failure) -> None:
        self.receiver.lost(failure)


class ScriptedTransport:
    """Keeps what was asked; the test answers."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.connects = True

    def request(
        self,
        engine: Engine,
        path: bytes,
        headers: bytes,  # noqa: ARG002 - the interface has it
        body: list[bytes],
        receiver: Receiver,
        *,
        seconds: float,
        repeatable: bool = True,
        method: bytes = b"POST",
    ) -> Call:
        assert (method, path[:4]) == (b"POST", b"/v1/")
        assert seconds > 0
        call = Call(engine, json.loads(b"".join(body)), receiver, repeatable, sent=self.connects)
        self.calls.append(call)
        return call

    def take(self) -> Call:
        """Return the one leg that waits for its answer."""
        legs = [call for call in self.calls if not call.is_lease]
        self.calls = [call for call in self.calls if call.is_lease]
        assert len(legs) == 1, f"{len(legs)} legs wait"
        return legs[0]

    def leases(self) -> list[Json]:
        """Return, once, the params of the messages about holds, confirmed as an engine would."""
        found = [call for call in self.calls if call.is_lease]
        self.calls = [call for call in self.calls if not call.is_lease]
        for call in found:
            call.answer({"error": {"message": "no such model"}}, 404)
        return [call.params for call in found]


@dataclass
class ScriptedClient:
    """Keeps what it got."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    broken: bool = False

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        assert not self.ended, "answered twice"
        self.start(status, headers)
        self.body, self.ended = body, True

    def start(self, status: int, headers: Headers) -> None:
        assert self.status == 0, "answered twice"
        self.status, self.headers = status, dict(headers)

    def write(self, data: bytes) -> None:
        assert self.status == 200
        self.body += data

    def end(self) -> None:
        self.ended = True

    def break_off(self) -> None:
        self.broken = True


class Stage:
    """A core with scripted engines, p1, p2, d1, d2, of one revision; `revisions` and `set_policy` change the fleet."""

    def __init__(
        self,
        kind: ConnectorKind = ConnectorKind.GUARDED,
        *,
        prefill: int = 2,
        decode: int = 2,
        queue: QueueSettings | None = None,
    ) -> None:
        self.clock = Clock()
        self.transport = ScriptedTransport()
        self.later: list[tuple[float, Callable[[], None]]] = []
        ledger = Ledger(self.clock)

        def gone(engine: Engine) -> None:
            ledger.forget_engine(engine.key, Fate.DRAINING if engine.draining else Fate.ENGINE_GONE)

        self.fleet = Fleet(self.clock, on_gone=gone, held_tokens=ledger.held_tokens)
        counters = Counters()
        keeper = Keeper(ledger=ledger, fleet=self.fleet, transport=self.transport, clock=self.clock, counters=counters)
        self.core = Core(
            fleet=self.fleet,
            ledger=ledger,
            keeper=keeper,
            transport=self.transport,
            clock=self.clock,
            later=lambda seconds, run: self.later.append((self.clock.now + seconds, run)),
            counters=counters,
            queue=queue or QueueSettings(),
        )
        self.kind = kind
        self.urls = {
            "prefill": [f"http://p{number}:1" for number in range(1, prefill + 1)],
            "decode": [f"http://d{number}:1" for number in range(1, decode + 1)],
        }
        self.revisions: dict[str, dict[str, list[str]]] = {}
        self.set_policy()

    @property
    def document(self) -> FleetDocument:
        assert self.fleet.document is not None
        return self.fleet.document

    def set_policy(self, **policy: Any) -> None:
        value = {
            "model": {"name": "m", "blockSize": 16, "connector": self.kind.value},
            "policy": policy,
            "revisions": [
                {"name": name, "engines": urls} for name, urls in (self.revisions or {"r1": self.urls}).items()
            ],
        }
        self.fleet.take_document(convert_document(value))

    def drain(self, *keys: str) -> None:
        """Have these engines get no new legs."""
        self.fleet.take_document(structs.replace(self.document, draining=list(keys)))

    def run_later(self) -> None:
        """Run what waits, without letting time pass."""
        waiting, self.later = self.later, []
        for _, run in waiting:
            run()

    def wait(self, seconds: float) -> None:
        """Let time pass, and what is due by then run."""
        self.clock.now += seconds
        due = [run for at, run in self.later if at <= self.clock.now]
        self.later = [each for each in self.later if each[0] > self.clock.now]
        for run in due:
            run()

    def begin(
        self, messages: list[Json], *, tenant: bytes = b"t", stream: bool = True, **more: Any
    ) -> tuple[Turn, ScriptedClient]:
        fields = {"model": "m", "messages": messages, "stream": stream, **more}
        request = parse_inference(Endpoint.CHAT, json.dumps(fields).encode())
        client = ScriptedClient()
        turn = Turn(self.core, Subject(request, self.document, tenant, b"", b"id"), client)
        turn.start()
        return turn, client

    def whole_turn(self, messages: list[Json], text: str = "Hi.", **handle: Any) -> ScriptedClient:
        """Run one turn to its end and return what the client got."""
        _, client = self.begin(messages)
        self.transport.take().prefilled()
        self.transport.take().stream(text, **handle)
        assert client.ended
        return client
