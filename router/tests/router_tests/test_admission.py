"""Admission: bounds by revision, a bounded queue in fair order, and nobody left in it without a client."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex_connector.contract import ConnectorKind
from duplex_router.fleet.document import convert_document
from duplex_router.fleet.fleet import Fleet
from duplex_router.turn.admission import Admission, QueueSettings, Ticket
from duplex_router.turn.counters import Counters
from duplex_router.turn.legs import Failure

from .scripted import ScriptedClient, Stage
from .test_ledger import Clock
from .turns import FIRST, SECOND, released, reuse


@dataclass(eq=False)
class Owner:
    """Keeps what it hears."""

    name: str
    log: list[str]
    refused: list[tuple[int, int]] = field(default_factory=list)

    def admitted(self) -> None:
        self.log.append(self.name)

    def stranded(self) -> None:
        self.log.append(f"{self.name} is stranded")

    def turned_away(self, status: HTTPStatus, retry_after: int) -> None:
        self.refused.append((status, retry_after))


class Gate:
    """An admission before two prefill engines and one decode engine."""

    def __init__(self, *, turns: int = 2, tokens: int = 100, waiting: int = 4, seconds: float = 30.0) -> None:
        self.clock = Clock()
        self.fleet = Fleet(self.clock, on_gone=lambda _: None)
        self.take(prefill=2, decode=1)
        settings = QueueSettings(turns, tokens, waiting, seconds)
        self.admission = Admission(fleet=self.fleet, clock=self.clock, counters=Counters(), settings=settings)
        self.log: list[str] = []

    def take(self, *, prefill: int, decode: int) -> None:
        urls = {
            "prefill": [f"http://p{number}:1" for number in range(prefill)],
            "decode": [f"http://d{number}:1" for number in range(decode)],
        }
        self.fleet.take_document(
            convert_document({"model": {"name": "m"}, "revisions": [{"name": "r", "engines": urls}]})
        )

    def enter(self, name: str, tokens: int = 10, tenant: str = "t") -> tuple[Ticket, Owner]:
        owner = Owner(name, self.log)
        ticket = self.admission.enter("r", tenant.encode(), tokens, owner)
        if ticket.inside:
            self.log.append(name)
        return ticket, owner


def test_turns_beyond_the_bound_wait_and_start_as_others_leave() -> None:
    gate = Gate(turns=2)
    first, _ = gate.enter("one")
    gate.enter("two")
    gate.enter("three")
    gate.enter("four")
    assert gate.log == ["one", "two"]
    assert gate.admission.waiting == 2
    gate.admission.leave(first)
    assert gate.log == ["one", "two", "three"]


def test_prompt_tokens_beyond_the_bound_wait_until_prefill_has_answered() -> None:
    gate = Gate(turns=9, tokens=100)
    first, _ = gate.enter("one", tokens=150)
    gate.enter("two", tokens=60)
    assert gate.log == ["one"]
    gate.admission.prefilled(first)
    assert gate.log == ["one", "two"]


def test_a_prompt_larger_than_the_bound_runs_alone() -> None:
    gate = Gate(tokens=100)
    first, _ = gate.enter("huge", tokens=1000)
    gate.enter("small", tokens=1)
    assert gate.log == ["huge"]
    gate.admission.prefilled(first)
    assert gate.log == ["huge", "small"]


def test_the_first_is_not_overtaken_by_smaller_ones() -> None:
    gate = Gate(turns=9, tokens=100)
    first, _ = gate.enter("one", tokens=190)
    gate.enter("large", tokens=50)
    gate.enter("small", tokens=1)
    assert gate.log == ["one"]
    gate.admission.prefilled(first)
    assert gate.log == ["one", "large", "small"]


def test_tenants_take_turns() -> None:
    gate = Gate(turns=1, waiting=10)
    ticket, _ = gate.enter("now")
    waiting = [gate.enter(f"noisy-{number}", tenant="noisy")[0] for number in range(4)]
    waiting += [gate.enter(f"quiet-{number}", tenant="quiet")[0] for number in range(2)]
    gate.admission.leave(ticket)
    while any(each.inside for each in waiting):
        gate.admission.leave(next(each for each in waiting if each.inside))
    assert gate.log[1:] == ["noisy-0", "quiet-0", "noisy-1", "quiet-1", "noisy-2", "noisy-3"]


def test_a_full_queue_turns_away_the_newest_of_the_tenant_that_has_most_waiting() -> None:
    gate = Gate(turns=1, waiting=3)
    gate.enter("now")
    noisy = [gate.enter(f"noisy-{number}", tenant="noisy")[1] for number in range(4)]
    assert [owner.refused for owner in noisy] == [[], [], [], [(429, 1)]]
    _, quiet = gate.enter("quiet", tenant="quiet")
    assert quiet.refused == []
    assert [bool(owner.refused) for owner in noisy] == [False, False, True, True]
    assert gate.admission.waiting == 3


def test_who_waits_too_long_is_turned_away_with_503() -> None:
    gate = Gate(turns=1, seconds=30)
    gate.enter("now")
    _, owner = gate.enter("late")
    gate.clock.now += 29.9
    gate.admission.tick()
    assert owner.refused == []
    gate.clock.now += 0.2
    gate.admission.tick()
    assert owner.refused == [(503, 1)]
    assert gate.admission.waiting == 0


def test_retry_after_follows_the_usual_wait() -> None:
    gate = Gate(turns=1, waiting=1, seconds=1000)
    ticket, _ = gate.enter("0")
    for number in range(1, 40):
        following, _ = gate.enter(str(number))
        gate.clock.now += 12
        gate.admission.leave(ticket)
        ticket = following
    gate.enter("waits")
    _, owner = gate.enter("too many")
    assert owner.refused == [(429, 12)]


def test_more_engines_let_more_in() -> None:
    gate = Gate(turns=1)
    gate.enter("one")
    gate.enter("two")
    gate.take(prefill=2, decode=2)
    assert gate.log == ["one"]
    gate.admission.tick()
    assert gate.log == ["one", "two"]


@given(st.lists(st.tuples(st.sampled_from("elp"), st.integers(0, 9), st.sampled_from("abc")), max_size=60))
def test_nothing_is_lost_or_counted_twice(steps: list[tuple[str, int, str]]) -> None:
    gate = Gate(turns=3, tokens=20, waiting=5)
    living: list[tuple[Ticket, Owner]] = []
    entered = 0
    for action, number, tenant in steps:
        living = [each for each in living if not each[1].refused]
        if action == "e":
            living.append(gate.enter(str(entered), tokens=number, tenant=tenant))
            entered += 1
        elif living:
            ticket, _ = living[number % len(living)]
            if action == "p":
                gate.admission.prefilled(ticket)
            else:
                gate.admission.leave(ticket)
                living.pop(number % len(living))
        living = [each for each in living if not each[1].refused]
        inside = [ticket for ticket, _ in living if ticket.inside]
        assert len(inside) <= 3
        assert gate.admission.waiting == len(living) - len(inside) <= 5
    for ticket, _ in living:
        gate.admission.leave(ticket)
    gate.admission.tick()
    assert gate.admission._queues == {}
    assert len(gate.log) == len(set(gate.log))


@pytest.fixture
def stage() -> Stage:
    return Stage(queue=QueueSettings(engine_turns=1, max_waiting=1), decode=1)


def test_a_turn_waits_and_then_runs(stage: Stage) -> None:
    stage.begin(FIRST)
    prefill = stage.transport.take()
    _, second = stage.begin([{"role": "user", "content": "else"}])
    assert stage.transport.calls == []
    prefill.prefilled()
    stage.transport.take().stream(request="hold-1")
    stage.transport.take().prefilled()
    stage.transport.take().stream(request="hold-2")
    assert second.ended
    assert stage.core.counters.in_flight == 0


@pytest.mark.parametrize("failure", [Failure.LOST, Failure.TIMEOUT])
def test_a_turn_that_fails_gives_its_place_back(stage: Stage, failure: Failure) -> None:
    stage.begin(FIRST)
    stage.transport.take().fail(failure)
    stage.transport.take().fail(failure)
    stage.begin(FIRST)
    assert len(stage.transport.calls) == 1


def test_beyond_the_queue_the_answer_is_429(stage: Stage) -> None:
    stage.begin(FIRST)
    stage.begin(FIRST)
    _, client = stage.begin(FIRST)
    assert client.status == 429
    assert client.headers[b"retry-after"] == b"1"
    assert b"rate_limit_error" in client.body


def test_a_client_that_leaves_while_it_waits_makes_room(stage: Stage) -> None:
    stage.begin(FIRST)
    turn, _ = stage.begin(FIRST)
    turn.client_gone()
    assert stage.core.admission.waiting == 0
    assert stage.core.counters.clients_gone["waiting"] == 1
    _, client = stage.begin(FIRST)
    assert client.status == 0


def wait_with_a_stock_handle() -> tuple[Stage, ScriptedClient]:
    """Return a stage on which a turn with a handle waits for another."""
    stage = Stage(ConnectorKind.STOCK, queue=QueueSettings(engine_turns=1), decode=1)
    stage.core.templates.learn("r1", tools=False, slack=0)
    stage.begin(FIRST)
    stage.transport.take().prefilled(prompt_tokens=64)
    stage.transport.take().stream(request="hold-1", tokens=80)
    stage.begin([{"role": "user", "content": "else"}])
    _, client = stage.begin(SECOND)
    return stage, client


def test_a_stock_handle_that_lapsed_while_its_turn_waited_is_not_offered() -> None:
    stage, client = wait_with_a_stock_handle()
    stage.clock.now += 479
    stage.transport.take().prefilled(prompt_tokens=64)
    stage.transport.take().stream(request="hold-2", tokens=80)
    prefill = stage.transport.take()
    assert prefill.params["remote_block_ids"] is None
    assert released(stage) == ["hold-1"]
    prefill.prefilled()
    stage.transport.take().stream(request="hold-3", tokens=80)
    assert reuse(client) == b"rejected;reason=expired"


def test_a_stock_handle_of_a_waiting_client_that_leaves_is_released() -> None:
    stage, _ = wait_with_a_stock_handle()
    turn = next(iter(stage.core.admission._queues["r1"].waiting.values()))[0].owner
    turn.client_gone()  # type: ignore[attr-defined]  # it is a turn
    assert released(stage) == ["hold-1"]
