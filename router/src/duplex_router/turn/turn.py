"""A turn: find a handle, prefill leg, decode leg, keep the new handle. Callbacks, no coroutine: it runs per request.

Whatever ends a turn, each hold that it touched has an owner afterwards: the ledger, a release, or a lease that lapses.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from duplex_router.fleet.engines import Engine
from duplex_router.wire.api_errors import engines_error, error_body, frees_hand_off
from duplex_router.wire.errors import WireError
from duplex_router.wire.fields import Value
from duplex_router.wire.heads import Headers, ResponseHead
from duplex_router.wire.params import MISS, decode_alone
from duplex_router.wire.prefill import PrefillAnswer, hand_off_to_decode, read_prefill_answer

from .admission import Ticket
from .closing import close_books
from .core import JSON_TYPE, Client, Core
from .decode import DecodeLeg
from .legs import OK, SERVER_ERROR, Answer, Exchange, Failure, WholeAnswer
from .offer import Rejection
from .offering import Offering
from .record import LegRecord, TurnRecord
from .retention import FinishedTurn, keep_handle
from .subject import Subject
from .tries import Tries, cause

BYTES_PER_TOKEN: Final = 4
"""A rough guess of English text, good enough to weigh one engine's waiting prompts against another's."""

_PASSED_ON: Final = (b"content-type", b"retry-after")


class Phase:
    """Where a turn is, in the words of metrics and records."""

    NEW: Final = "new"
    WAITING: Final = "waiting"
    PREFILL: Final = "prefill"
    DECODE: Final = "decode"
    STREAM: Final = "stream"
    DONE: Final = "done"


class Turn:
    """One turn. Make it, call `start` once; the client's connection then calls `client_gone`, `pause` and `resume`."""

    __slots__ = (
        "_answer", "_client", "_core", "_decoder", "_engine", "_exchange", "_hand_off", "_kept", "_offering", "_phase",
        "_prefill_engine", "_record", "_revision", "_subject", "_ticket", "_tries", "_waiting", "_watched",
    )  # fmt: skip

    def __init__(self, core: Core, subject: Subject, client: Client) -> None:
        self._core, self._subject, self._client = core, subject, client
        self._record = TurnRecord(subject.request_id.decode("latin-1"), core.clock())
        self._phase: str = Phase.NEW
        self._offering = Offering(core, subject)
        self._tries = Tries(core)
        self._answer: PrefillAnswer | None = None
        self._hand_off: bytes | None = None
        self._exchange: Exchange | None = None
        self._decoder: DecodeLeg | None = None
        self._engine: Engine | None = None
        self._prefill_engine: Engine | None = None
        self._revision = ""
        self._ticket: Ticket | None = None
        self._waiting = 0
        self._kept = False
        self._watched = True
        """The client is still there."""

    # -- start

    def start(self) -> None:
        """Run the turn. It answers the client in any case, if the client stays."""
        core = self._core
        core.counters.turns += 1
        core.counters.in_flight += 1
        if core.shared is None:
            self._offering.search_own()
            self._begin()
        else:
            self._offering.search(self._record, self._begin)

    def _begin(self) -> None:
        if not self._watched:
            self._offering.give_up()
            self._finish(499)
            return
        core, source = self._core, self._offering.offer.source
        revision = core.fleet.pick_revision(source.revision if source is not None else self._subject.revision)
        if revision is None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "No prefill and decode engine of one revision is ready.")
            return
        self._enter(revision)

    def _enter(self, revision: str) -> None:
        self._revision = revision
        tokens = 0 if self._subject.request.whole else self._tokens()
        self._phase = Phase.WAITING
        self._ticket = self._core.admission.enter(revision, self._subject.tenant, tokens, self)
        if self._ticket.inside:
            self.admitted()

    def _goes_elsewhere(self) -> bool:
        """Begin anew on another revision, once: the turn's own has no engine of a role left that could take it."""
        revision = self._core.fleet.pick_revision(but=self._revision)
        if revision is None or not self._watched or not self._tries.may_move():
            return False
        self._core.counters.retries["revision"] += 1
        if self._offering.live:
            self._offering.withdraw(Rejection.REVISION)
        self._answer = self._prefill_engine = None
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._core.admission.leave(ticket)
        self._enter(revision)
        return True

    def stranded(self) -> None:
        """See `Waiting`."""
        self._goes_elsewhere()

    def admitted(self) -> None:
        """See `Waiting`."""
        if self._subject.request.whole:
            self._start_decode()
        else:
            self._start_prefill()

    def turned_away(self, status: HTTPStatus, retry_after: int) -> None:
        """See `Waiting`."""
        self._refuse(status, "Too many requests are under way; try again.", retry_after)

    # -- prefill leg

    def _start_prefill(self) -> None:
        last, _ = self._offering.affinity()
        engine = self._core.fleet.pick_prefill(
            self._revision, last, self._tries.avoid, tokens=self._tokens(), holder=self._offering.holder
        )
        if engine is None:
            if not self._goes_elsewhere():
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "No prefill engine is ready.")
            return
        self._phase = Phase.PREFILL
        self._prefill_engine = self._engine = engine
        params = self._offering.params_for(engine) or MISS
        receiver = WholeAnswer(self._prefill_ended)
        body = self._subject.request.prefill_body(params, token_ids=self._subject.shares_token_ids)
        self._send(engine, body, receiver, self._core.settings.prefill_seconds)

    def _tokens(self) -> int:
        return self._subject.request.size // BYTES_PER_TOKEN + 1

    def _send(self, engine: Engine, body: list[Value], receiver: WholeAnswer | DecodeLeg, seconds: float) -> None:
        self._record.legs.append(LegRecord(self._phase, engine.name, self._core.clock()))
        engine.legs += 1
        if self._phase == Phase.PREFILL:
            self._waiting = self._tokens()
            engine.waiting_tokens += self._waiting
        # What reads a hand-off, or a stock engine's handle, must not be sent twice: the second would read freed memory.
        repeatable = self._phase == Phase.PREFILL and (self._subject.guarded or not self._offering.live)
        self._exchange = self._core.transport.request(
            engine, self._path, self._subject.headers, body, receiver, seconds=seconds, repeatable=repeatable
        )
        receiver.exchange = self._exchange

    def _leg_ended(self) -> Engine | None:
        engine, self._engine, self._exchange = self._engine, None, None
        if engine is not None:
            self._record.legs[-1].ended = self._core.clock()
            engine.legs -= 1
            if self._phase == Phase.PREFILL:
                engine.waiting_tokens -= self._waiting
                self._waiting = 0
        return engine

    def _prefill_ended(self, result: Answer | Failure) -> None:
        engine = self._leg_ended()
        self._core.counters.prefill_leg.add(self._record.legs[-1].seconds)
        self._offering.pull_ended(surely=isinstance(result, Answer))
        if isinstance(result, Failure) or result.status >= SERVER_ERROR:
            self._prefill_failed(engine, result)
            return
        if result.status != OK:
            if engine is not None:
                engine.answered(self._core.clock())
            self._offering.give_up()
            self._pass_on(result)
            return
        try:
            answer = read_prefill_answer(result.body)
        except WireError:
            answer = None
        if engine is None or answer is None or answer.failed:
            self._prefill_failed(engine, result)
            return
        engine.answered(self._core.clock())
        self._answer = answer
        self._hand_off = answer.hand_off
        self._tries.avoid |= self._offering.answered(engine, answer)
        if self._ticket is not None:
            self._core.admission.prefilled(self._ticket)
        self._start_decode()

    def _prefill_failed(self, engine: Engine | None, result: Answer | Failure) -> None:
        what = cause(result)
        self._core.counters.leg_failures["prefill", what] += 1
        leg = self._record.legs[-1]
        leg.what = what
        again = self._tries.prefill_failed(
            engine, result, holder=self._offering.holder, began=leg.began, guarded=self._subject.guarded
        )
        self._offering.failed(result, elsewhere=engine is not None and self._tries.elsewhere(engine))
        if again:
            self._core.counters.retries["prefill"] += 1
            self._start_prefill()
            return
        if result is Failure.UNREACHABLE and self._goes_elsewhere():
            return
        status = HTTPStatus.GATEWAY_TIMEOUT if result is Failure.TIMEOUT else HTTPStatus.BAD_GATEWAY
        self._fail(status, f"The prefill engine failed ({what}); the request may be sent again.")

    # -- decode leg

    def _start_decode(self) -> None:
        _, last = self._offering.affinity()
        engine = self._core.fleet.pick_decode(self._revision, last, self._tries.avoid, prefill=self._hander())
        if engine is None:
            self._drop_hand_off()
            self._offering.spent()
            if not self._goes_elsewhere():
                self._fail(HTTPStatus.SERVICE_UNAVAILABLE, "No decode engine is ready.")
            return
        self._phase = Phase.DECODE
        self._engine = engine
        if self._subject.request.whole:
            params = None
        elif self._hand_off is None or self._answer is None:
            params = decode_alone(self._subject.ttl)
        else:
            share = self._subject.shares_token_ids
            params = hand_off_to_decode(self._answer, self._subject.ttl, with_token_ids=share)
        settings = self._core.settings
        self._decoder = DecodeLeg(self, self._subject.request.endpoint, settings.silence_seconds)
        self._send(engine, self._subject.request.decode_body(params), self._decoder, settings.decode_seconds)

    def _hander(self) -> str:
        """Return the key of the engine whose hand-off the decode leg reads; empty where it reads none."""
        return self._prefill_engine.key if self._hand_off is not None and self._prefill_engine is not None else ""

    def _drop_hand_off(self) -> None:
        """Have the prefill engine free what no decode leg will read."""
        if self._hand_off is not None:
            self._core.keeper.release_hand_off(self._hand_off, self._revision)
            self._hand_off = None

    def decode_failed(self, failure: Failure | Answer) -> None:
        """See `DecodeListener`: both legs once more, unless it is sure that nobody has read the hand-off."""
        what = cause(failure)
        self._core.counters.leg_failures["decode", what] += 1
        engine = self._leg_ended()
        leg = self._record.legs[-1]
        leg.what = what
        again = self._watched and self._tries.decode_failed(
            engine, failure, hander=self._hander(), began=leg.began, guarded=self._subject.guarded
        )
        unread = failure is Failure.UNREACHABLE
        if not (again and unread):
            self._drop_hand_off()
        if again:
            self._core.counters.retries["decode"] += 1
            if unread or self._subject.request.whole:
                self._start_decode()
            else:
                self._offering.done_again(engine.key if engine is not None else "")
                self._start_prefill()
        elif isinstance(failure, Answer):
            self._pass_on(failure)
        elif not (unread and self._moves_after(engine)):
            status = HTTPStatus.GATEWAY_TIMEOUT if failure is Failure.TIMEOUT else HTTPStatus.BAD_GATEWAY
            self._fail(status, f"The decode engine failed ({what}); the request may be sent again.")

    def _moves_after(self, engine: Engine | None) -> bool:
        """Begin anew on another revision after a decode engine could not be reached and no other is left."""
        self._offering.done_again(engine.key if engine is not None else "")
        return self._goes_elsewhere()

    def decode_refused(self, answer: Answer) -> None:
        """See `DecodeListener`."""
        self._leg_ended()
        if not frees_hand_off(answer.body):
            self._drop_hand_off()
        self._pass_on(answer)

    def decode_streams(self, head: ResponseHead) -> None:
        """See `DecodeListener`."""
        self._phase = Phase.STREAM
        if self._engine is not None:
            self._engine.answered(self._core.clock())
        self._first_byte()
        if self._watched:
            self._client.start(head.status, [(b"content-type", head.get(b"content-type")), *self._own_headers()])

    def decode_part(self, data: bytes) -> None:
        """See `DecodeListener`."""
        if self._watched:
            self._client.write(data)

    def decode_broke(self, failure: Failure) -> None:
        """See `DecodeListener`. After the client has bytes of it, an answer cannot be done again."""
        self._core.counters.leg_failures["stream", failure.value] += 1
        self._record.legs[-1].what = failure.value
        engine = self._leg_ended()
        if engine is not None:
            engine.failed(self._core.clock())
        self._keep_handle(engine)
        if self._watched:
            message = f"The decode engine failed ({failure.value}) while it answered."
            if self._decoder is not None:
                self._client.write(self._decoder.broken_event(message))
            self._client.break_off()
        self._finish(HTTPStatus.BAD_GATEWAY)

    def decode_complete(self) -> None:
        """See `DecodeListener`. A client goes on as soon as it sees the end, so the handle is kept before that."""
        self._keep_handle(self._engine)

    def decode_done(self, answer: Answer | None) -> None:
        """See `DecodeListener`."""
        engine = self._leg_ended()
        self._core.counters.decode_leg.add(self._record.legs[-1].seconds)
        if engine is not None:
            engine.answered(self._core.clock())
        self._keep_handle(engine)
        if self._watched:
            if answer is None:
                self._client.end()
            else:
                self._first_byte()
                self._client.respond(answer.status, self._passed_headers(answer.head), answer.body)
        self._finish(OK)

    def _keep_handle(self, engine: Engine | None) -> None:
        if engine is None or self._decoder is None or self._kept:
            return
        self._kept = True
        prefill = self._prefill_engine.key if self._prefill_engine is not None else ""
        prompt_tokens = self._answer.prompt_tokens if self._answer is not None else 0
        finished = FinishedTurn(
            self._revision, engine, prefill, prompt_tokens, self._decoder.observer, read_hand_off=bool(self._hander())
        )
        keep_handle(self._core, self._subject, self._offering.offer, finished)

    # -- the client's side

    def pause(self) -> None:
        """Read no more from the engine: the client does not keep up."""
        if self._phase == Phase.STREAM and self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        """Read on."""
        if self._phase == Phase.STREAM and self._exchange is not None:
            self._exchange.resume()

    def client_gone(self) -> None:
        """End the turn without its client, leg by leg, so that nothing stays pinned without an owner."""
        if not self._watched or self._phase == Phase.DONE:
            return
        self._watched = False
        self._core.counters.clients_gone[self._phase] += 1
        if self._phase == Phase.NEW:
            return  # the shared ledger's answer ends it
        if self._phase == Phase.WAITING:
            self._offering.give_up()
            self._finish(499)
        elif self._phase == Phase.PREFILL:
            self._abort_leg()
            self._offering.pull_ended(surely=False)
            self._offering.give_up(cut_off=True)
            self._finish(499)
        elif self._phase == Phase.DECODE and self._exchange is not None and not self._exchange.sent:
            self._abort_leg()
            self._drop_hand_off()
            self._finish(499)
        else:
            # The engine may just have finished: what has arrived is read first, so that its handle is known.
            self.resume()
            self._core.later(self._core.settings.gone_grace_seconds, self._abandon)

    def _abandon(self) -> None:
        if self._phase == Phase.DONE or (self._decoder is not None and self._decoder.observer.handle is not None):
            return  # over, or only the end of the answer is missing: read on and keep the handle
        self._abort_leg()
        self._finish(499)

    def _abort_leg(self) -> None:
        if self._exchange is not None:
            self._exchange.abort()
        self._leg_ended()

    @property
    def _path(self) -> bytes:
        return self._subject.request.path

    def _own_headers(self) -> Headers:
        return self._offering.outcome.headers(self._subject.request_id)

    def _passed_headers(self, head: ResponseHead) -> Headers:
        return [*[pair for pair in head.headers if pair[0] in _PASSED_ON], *self._own_headers()]

    def _pass_on(self, answer: Answer) -> None:
        if self._watched:
            body = engines_error(answer.status, answer.body, self._path)
            self._client.respond(answer.status, self._passed_headers(answer.head), body)
        self._finish(answer.status)

    def _fail(self, status: HTTPStatus, message: str, retry_after: int = 1) -> None:
        if self._watched:
            headers = [JSON_TYPE, (b"retry-after", b"%d" % retry_after), *self._own_headers()]
            self._client.respond(status, headers, error_body(status, message, path=self._path))
        self._finish(status)

    def _refuse(self, status: HTTPStatus, message: str, retry_after: int = 1) -> None:
        self._offering.give_up()
        self._fail(status, message, retry_after)

    def _first_byte(self) -> None:
        self._record.first_byte = now = self._core.clock()
        self._core.counters.took_first_byte(self._offering.outcome.kind, now - self._record.began)

    def _finish(self, status: int) -> None:
        if self._phase == Phase.DONE:
            return
        self._phase = Phase.DONE
        record, offering = self._record, self._offering
        offering.over()
        if self._ticket is not None:
            self._core.admission.leave(self._ticket)
        record.revision, record.outcome, record.matched_depth = self._revision, offering.outcome, offering.offer.depth
        record.source = offering.source_name()
        observer = self._decoder.observer if self._decoder is not None else None
        close_books(self._core, self._subject, record, observer, status)
        # What holds one another lets go, so that no garbage collector is needed.
        self._ticket = self._decoder = None
