"""What becomes of the handle that a turn ends with: it enters the ledger and replaces what it continues."""

from __future__ import annotations

from duplex_router.fleet.engines import Engine
from duplex_router.fleet.pairs import Way
from duplex_router.ledger.ledger import EXPIRY_MARGIN_SECONDS, Entry
from duplex_router.ledger.returns import Kind
from duplex_router.wire.errors import WireError
from duplex_router.wire.params import read_handle
from duplex_router.wire.reply import Observer

from .core import Core
from .offer import Offer
from .subject import Subject


class FinishedTurn:
    """How the legs went: the decode engine that holds now, and the prefill engine's key, empty if there was none."""

    __slots__ = ("engine", "observer", "prefill", "prompt_tokens", "read_hand_off", "revision")

    def __init__(
        self,
        revision: str,
        engine: Engine,
        prefill: str,
        prompt_tokens: int,
        observer: Observer,
        *,
        read_hand_off: bool = False,
    ) -> None:
        self.revision = revision
        self.engine = engine
        self.prefill = prefill
        self.prompt_tokens = prompt_tokens
        self.observer = observer
        self.read_hand_off = read_hand_off

    """Whether the decode engine was to read what the prefill engine handed off."""


def keep_handle(core: Core, subject: Subject, offer: Offer, finished: FinishedTurn) -> None:
    """Give the turn's new hold an owner: the ledger, or a release at once where nobody could use it."""
    raw, engine = finished.observer.handle, finished.engine
    if raw is None:
        return
    try:
        handle = finished.observer.held or read_handle(raw)
    except WireError:
        core.counters.leg_failures["decode", "malformed-handle"] += 1
        return
    core.fleet.booted(engine, handle.boot)
    if finished.read_hand_off:
        if handle.computed_alone:
            core.fleet.transfer_failed(finished.prefill, engine.key, Way.HAND_OFF)
        else:
            core.fleet.transfer_worked(finished.prefill, engine.key, Way.HAND_OFF)
    history = subject.history
    if subject.ttl == 0 or history is None or finished.observer.failed:
        core.keeper.release_unowned(handle, engine.key, finished.revision)
        return
    source, now = offer.source, core.clock()
    entry = Entry(
        handle=handle,
        engine=engine.key,
        prefill=finished.prefill,
        revision=finished.revision,
        tenant=subject.tenant,
        marks=history.continued(finished.observer.reply),
        depth=len(history.marks),
        whole=history.whole,
        length=history.length,
        shape=history.shape,
        created=now,
        deadline=now + subject.ttl,
        kind=_kind(finished.observer, source),
        saves=source.saves if source is not None else 1.0,
        margin=max(EXPIRY_MARGIN_SECONDS, subject.terms.margin_seconds),
        tokens_known=_tokens_known(core, subject, offer, finished),
    )
    if source is not None and history.begins_with(source.whole, source.length):
        core.ledger.replace(source, entry)
    else:
        core.ledger.add(entry)
    if core.shared is not None:
        core.shared.publish(entry)
    _keep_within_budget(core, subject, engine)
    core.keeper.flush()
    if subject.request.session:
        core.sessions.set(subject.request.session, finished.prefill, engine.key)


def _keep_within_budget(core: Core, subject: Subject, engine: Engine) -> None:
    """Retire what an engine holds for this router beyond its part of the budget."""
    if engine.kv_tokens is None:
        return
    budget = engine.kv_tokens * subject.terms.retention_percent // 100
    budget //= core.shared.routers if core.shared is not None else 1
    retired = core.ledger.keep_within(engine.key, budget)
    if retired:
        core.counters.holds_ended["over-budget"] += retired


def _tokens_known(core: Core, subject: Subject, offer: Offer, finished: FinishedTurn) -> tuple[tuple[int, int], ...]:
    """Return up to which depths the hold's tokens are known: at its prompt's end, and at the end of those before it.

    None at all where no probe has found this turn's prompt to stay as it is: a later one that is stable by itself may
    follow it, and render what they share otherwise. Each depth once: a prompt that is sent again adds nothing.
    """
    history, source = subject.history, offer.source
    if subject.guarded or history is None:
        return ()
    if core.templates.slack(finished.revision, subject.request, history) is None:
        return ()
    ours = source is not None and source.revision == finished.revision
    before = [each for each in source.tokens_known if each[0] <= offer.depth] if source is not None and ours else []
    return tuple(dict([*before, *history.boundary(finished.prompt_tokens)]).items())


def _kind(observer: Observer, source: Entry | None) -> Kind:
    if observer.reply.tool_calls:
        return Kind.CALLS
    return Kind.LATER if source is not None else Kind.FIRST
