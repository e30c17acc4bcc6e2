"""Turns on stock engines: a handle is trimmed to a former prompt, and given away once."""

import json

import pytest

from duplex_connector.contract import ConnectorKind
from duplex_router.turn.legs import Failure
from duplex_router.turn.offer import Offer
from duplex_router.turn.retention import FinishedTurn, keep_handle
from duplex_router.turn.subject import Subject
from duplex_router.turn.templates import MARGIN_TOKENS
from duplex_router.wire.inference import Endpoint, parse_inference
from duplex_router.wire.reply import Observer

from .handles import handle_fields
from .scripted import Call, Json, Stage
from .turns import FIRST, SECOND, held, released, reuse


@pytest.fixture
def stock() -> Stage:
    found = Stage(ConnectorKind.STOCK)
    found.core.templates.learn("r1", tools=False, slack=0)
    return found


def stock_turn(stage: Stage, messages: list[Json], *, request: str, prompt_tokens: int) -> None:
    stage.begin(messages)
    stage.transport.take().prefilled(prompt_tokens=prompt_tokens)
    stage.transport.take().stream(request=request, tokens=prompt_tokens + 20)


def show_life(stock: Stage, call: Call) -> None:
    """Let the engine that a leg was cut off from answer something, and the router see it."""
    stock.wait(1)
    call.engine.heard_at = stock.clock.now
    stock.wait(5)


def test_a_stock_handle_is_trimmed_and_used_once(stock: Stage) -> None:
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=48 + MARGIN_TOKENS)
    stock.begin(SECOND)
    prefill = stock.transport.take()
    assert prefill.params["remote_num_tokens"] == 48
    assert len(prefill.params["remote_block_ids"][0]) == 3
    assert not prefill.repeatable
    assert held(stock) == set()
    stock.begin(SECOND)
    assert stock.transport.take().params["remote_block_ids"] is None


@pytest.mark.parametrize("failure", [Failure.LOST, Failure.TIMEOUT, Failure.UNREACHABLE])
def test_a_stock_handle_is_burnt_by_a_failure_and_its_hold_released(stock: Stage, failure: Failure) -> None:
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=50)
    stock.begin(SECOND)
    call = stock.transport.take()
    call.fail(failure)
    if failure is not Failure.UNREACHABLE:
        assert released(stock) == [], "the engine that was cut off may still read"
        show_life(stock, call)
    assert released(stock) == ["hold-1"]
    assert stock.transport.take().params["remote_block_ids"] is None


def test_a_stock_handle_is_burnt_by_a_client_that_leaves(stock: Stage) -> None:
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=50)
    turn, _ = stock.begin(SECOND)
    call = stock.transport.take()
    turn.client_gone()
    assert released(stock) == [], "the engine may still read"
    show_life(stock, call)
    assert released(stock) == ["hold-1"]


def test_a_stock_handle_is_not_released_under_an_engine_that_stands_still(stock: Stage) -> None:
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=50)
    stock.begin(SECOND)
    call = stock.transport.take()
    call.fail(Failure.TIMEOUT)
    for _ in range(10):
        stock.wait(6)
    assert released(stock) == []
    show_life(stock, call)
    assert released(stock) == ["hold-1"]


def test_a_stock_hold_under_an_engine_that_never_comes_back_is_left_to_its_ttl(stock: Stage) -> None:
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=50)
    stock.begin(SECOND)
    stock.transport.take().fail(Failure.TIMEOUT)
    stock.wait(stock.document.policy.ttl_seconds + 1)
    assert released(stock) == []
    assert stock.later == []


def test_a_redone_turn_does_not_offer_a_stock_handle_again(stock: Stage) -> None:
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=50)
    stock.begin(SECOND)
    stock.transport.take().prefilled("one")
    stock.transport.take().fail(Failure.LOST)
    assert stock.transport.take().params["remote_block_ids"] is None


def test_a_stock_engine_with_an_unprobed_template_gets_no_handle() -> None:
    stage = Stage(ConnectorKind.STOCK)
    stock_turn(stage, FIRST, request="hold-1", prompt_tokens=50)
    _, client = stage.begin(SECOND)
    prefill = stage.transport.take()
    assert prefill.params["remote_block_ids"] is None
    prefill.prefilled(prompt_tokens=70)
    stage.transport.take().stream(request="hold-2", tokens=80)
    assert reuse(client) == b"rejected;reason=unstable-template"
    assert released(stage) == ["hold-1"]


@pytest.mark.parametrize(("slack", "pulled"), [(2, 48), (3, 32)])
@pytest.mark.parametrize("tools", [False, True])
def test_slack_and_a_margin_are_taken_off_before_the_blocks_are_counted(
    stock: Stage, slack: int, pulled: int, *, tools: bool
) -> None:
    """Slack with tools counts for plain turns too: a plain turn may pull from one with tools."""
    stock.core.templates.learn("r1", tools=tools, slack=slack)
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=48 + 2 + MARGIN_TOKENS)
    stock.begin(SECOND)
    assert stock.transport.take().params["remote_num_tokens"] == pulled


@pytest.mark.parametrize(("revision", "known"), [("r1", ((1, 50), (3, 80))), ("r2", ((3, 80),))])
def test_what_is_known_of_a_prompt_does_not_cross_to_another_revision(
    stock: Stage, revision: str, known: tuple[tuple[int, int], ...]
) -> None:
    stock.core.templates.learn("r2", tools=False, slack=0)
    stock_turn(stock, FIRST, request="hold-1", prompt_tokens=50)
    (source,) = stock.core.ledger
    request = parse_inference(Endpoint.CHAT, json.dumps({"model": "m", "messages": SECOND}).encode())
    observer = Observer()
    observer.handle = json.dumps(handle_fields(request="hold-2")).encode()
    turn = FinishedTurn(revision, stock.core.fleet.engines[source.engine], "", 80, observer)
    keep_handle(stock.core, Subject(request, stock.document, b"t", b"", b"id"), Offer(source, source.depth), turn)
    (kept,) = stock.core.ledger
    assert kept.tokens_known == known


PICTURE = {"type": "image_url", "image_url": {"url": "https://pictures.example/today.png"}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, PICTURE]},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "one", "mood": "merry"},
    ],
)
def test_what_no_probe_can_speak_for_gets_no_handle(stock: Stage, message: Json) -> None:
    stock.core.templates.learn("r1", tools=True, slack=0)
    stock_turn(stock, [message], request="hold-1", prompt_tokens=60)
    _, client = stock.begin([message, *SECOND[1:]])
    prefill = stock.transport.take()
    assert prefill.params["remote_block_ids"] is None
    prefill.prefilled(prompt_tokens=80)
    stock.transport.take().stream(request="hold-2", tokens=90)
    assert reuse(client) == b"rejected;reason=unstable-template"
