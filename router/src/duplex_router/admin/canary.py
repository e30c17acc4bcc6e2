"""The canary: a two-turn conversation of the router's own, through the same turns as any client's.

It runs when a revision first becomes complete, and then at the interval of the fleet document. It shows that a token
can be served, and whether the second turn reused the first one's KV.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec

from duplex_connector.contract import Header
from duplex_router.fleet.document import FleetDocument
from duplex_router.ledger.fates import Fate
from duplex_router.turn.counters import Counters
from duplex_router.turn.subject import Subject
from duplex_router.turn.turn import Turn
from duplex_router.wire.heads import Headers
from duplex_router.wire.inference import Endpoint, parse_inference

from .state import AdminState, CanaryState

POLL_SECONDS = 0.5
RETRY_SECONDS = 5.0
TURN_SECONDS = 120.0
ANSWER_TOKENS = 96  # more than a digest step, so that there is something to pull where prefill has the prompt itself
_TENANT = b"duplex-canary"
_FILLER = "The canary of this router checks that a conversation's memory comes back. " * 12

log = logging.getLogger(__name__)


class _Listener:
    """The canary's side of a turn: takes the whole answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[int, dict[bytes, bytes], bytes]] = asyncio.get_running_loop().create_future()

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result((status, dict(headers), body))

    def start(self, status: int, headers: Headers) -> None:
        """See `Client`: an unstreamed request has no streamed answer."""

    def write(self, data: bytes) -> None:
        """See `start`."""

    def end(self) -> None:
        """See `start`."""

    def break_off(self) -> None:
        """See `start`."""


class CanaryError(Exception):
    """A canary's turn that was not answered as it should be."""


class Canary:
    """Runs the conversation and keeps what it found of each revision in the admin state."""

    def __init__(self, state: AdminState, wall_clock: Callable[[], float]) -> None:
        self._state = state
        self._wall_clock = wall_clock
        # What the canary does counts as nothing that clients did, but for the tokens that a revision has served.
        counters = Counters(revisions=state.core.counters.revisions)
        self._core = dataclasses.replace(state.core, counters=counters)

    async def once(self, document: FleetDocument, revision: str) -> bool:
        """Run one conversation on a revision; true where both turns were answered."""
        canary = self._state.canaries.setdefault(revision, CanaryState())
        # However little has to be pulled, it shall be pulled: this is a check, not an economy.
        policy = msgspec.structs.replace(document.policy, recompute_threshold_tokens=0)
        document = msgspec.structs.replace(document, policy=policy)
        nonce = secrets.token_hex(8)
        messages: list[dict[str, str]] = [{"role": "user", "content": f"{nonce}: {_FILLER}What is checked?"}]
        try:
            _, reply = await self._turn(document, revision, messages)
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "And now?"}]
            reuse, _ = await self._turn(document, revision, messages)
        except CanaryError as error:
            self._failed(revision, canary, str(error))
            return False
        canary.last_success = self._wall_clock()
        # `local`: prefill had all of it itself, which says nothing about pulls.
        canary.reused = None if reuse.endswith(b"reason=local") else reuse.startswith((b"full", b"partial"))
        canary.failures = 0
        canary.served_tokens = self._state.core.counters.revision(revision).served_tokens
        canary.message = f"second turn: {reuse.decode()}"
        self._release_own()
        return True

    def _failed(self, revision: str, canary: CanaryState, why: str) -> None:
        """Count a failure; where clients have got tokens since the last, the revision serves, and it is the first."""
        served = self._state.core.counters.revision(revision).served_tokens
        canary.failures = 1 if served > canary.served_tokens else canary.failures + 1
        canary.served_tokens = served
        canary.message = why
        log.warning("canary of revision %s: %s", revision, why)

    def _release_own(self) -> None:
        """Release what the canary's turns hold: nobody will continue them."""
        ledger = self._state.core.ledger
        for entry in [each for each in ledger if each.tenant == _TENANT]:
            ledger.retire(entry, Fate.REPLACED)
        self._state.core.keeper.flush()

    async def _turn(self, document: FleetDocument, revision: str, messages: list[dict[str, str]]) -> tuple[bytes, str]:
        fields = {"model": document.model.name, "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0}
        listener = _Listener()
        request_id = f"canary-{secrets.token_hex(8)}".encode()
        request = parse_inference(Endpoint.CHAT, msgspec.json.encode(fields))
        lines = b"content-type: application/json\r\nx-request-id: %b\r\n" % request_id
        subject = Subject(request, document, _TENANT, lines, request_id, revision=revision)
        turn = Turn(self._core, subject, listener)
        turn.start()
        try:
            async with asyncio.timeout(TURN_SECONDS):
                status, headers, body = await listener.answer
        except TimeoutError as error:
            raise CanaryError(f"no answer within {TURN_SECONDS:.0f} s") from error
        finally:
            turn.client_gone()
        if status != HTTPStatus.OK:
            raise CanaryError(f"HTTP {status}: {body[:200].decode('utf-8', 'replace')}")
        return headers.get(Header.REUSE.encode(), b""), _content(body)

    async def run(self) -> None:
        """Run when there is something new to check, and at the interval, until cancelled."""
        clock = self._state.core.clock
        due: dict[str, float] = {}
        while True:
            document = self._state.core.fleet.document
            revisions = document.revisions if document is not None and document.canary.enabled else []
            for name in self._state.canaries.keys() - {revision.name for revision in revisions}:
                del self._state.canaries[name]
                due.pop(name, None)
            for revision in revisions:
                name = revision.name
                if document is None or clock() < due.get(name, 0.0) or not self._state.core.fleet.complete(name):
                    continue
                good = await self.once(document, name)
                due[name] = clock() + (max(document.canary.interval_seconds, 1.0) if good else RETRY_SECONDS)
            await asyncio.sleep(POLL_SECONDS)


def _content(body: bytes) -> str:
    try:
        answer: dict[str, Any] = msgspec.json.decode(body)
        return str(answer["choices"][0]["message"]["content"] or "")
    except (msgspec.DecodeError, KeyError, IndexError, TypeError) as error:
        raise CanaryError(f"not a chat completion: {body[:200].decode('utf-8', 'replace')}") from error
