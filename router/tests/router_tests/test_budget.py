"""The budget: the least valuable hold goes first, shares are kept, and it saves more than taking the oldest."""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex_router.ledger.budget import EngineHolds
from duplex_router.ledger.fates import Fate
from duplex_router.ledger.ledger import Entry, Ledger
from duplex_router.ledger.returns import Kind

from .test_history import chat
from .test_ledger import Clock, entry_of


class Worths:
    """Worths by name that a test sets, relied on for ten seconds."""

    def __init__(self) -> None:
        self.of: dict[str, float] = {}
        self.asked = 0

    def __call__(self, name: str) -> tuple[float, float]:
        self.asked += 1
        return self.of[name], 10.0


@pytest.fixture
def worths() -> Worths:
    return Worths()


def filled(worths: Worths, *holds: tuple[str, bytes, int, float]) -> EngineHolds[str]:
    found = EngineHolds(worths)
    for name, tenant, tokens, worth in holds:
        worths.of[name] = worth
        found.add(name, tenant, tokens)
    return found


def nobody(_: str) -> bool:
    return False


def test_the_least_worth_goes_first_and_what_is_spared_stays(worths: Worths) -> None:
    holds = filled(worths, ("a", b"t", 10, 3.0), ("b", b"t", 10, 1.0), ("c", b"t", 10, 2.0))
    assert holds.first_to_go(20, 0.0, spared=nobody) == "b"
    assert holds.first_to_go(20, 0.0, spared=lambda name: name == "b") == "c"
    assert holds.first_to_go(20, 0.0, spared=nobody) == "b", "sparing it forgot nothing"
    assert holds.first_to_go(20, 0.0, spared=lambda _: True) is None
    holds.remove("b")
    assert (holds.first_to_go(10, 0.0, spared=nobody), holds.tokens, len(holds)) == ("c", 20, 2)


def test_a_changed_worth_counts_at_once_where_it_is_told_and_soon_where_it_is_not(worths: Worths) -> None:
    holds = filled(worths, ("a", b"t", 10, 3.0), ("b", b"t", 10, 1.0))
    assert holds.first_to_go(10, 0.0, spared=nobody) == "b"
    worths.of["a"] = 0.5
    assert holds.first_to_go(10, 9.0, spared=nobody) == "b"
    assert holds.first_to_go(10, 10.0, spared=nobody) == "a"
    worths.of["b"] = 0.1
    holds.changed("b")
    assert holds.first_to_go(10, 11.0, spared=nobody) == "b"
    holds.changed("never held")


def test_who_holds_no_more_than_its_share_is_left_alone(worths: Worths) -> None:
    noisy = [(f"n{number}", b"noisy", 10, 9.0) for number in range(9)]
    holds = filled(worths, ("quiet", b"quiet", 10, 0.001), *noisy)
    gone = []
    while holds.tokens > 40:
        name = holds.first_to_go(40, 0.0, spared=nobody)
        assert name is not None
        holds.remove(name)
        gone.append(name)
    assert "quiet" not in gone
    assert holds.first_to_go(40, 0.0, spared=lambda name: name != "quiet") == "quiet", "only where nothing else can go"


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "change", "turn"]), st.integers(0, 9), st.floats(0, 1))))
def test_the_heap_always_names_what_a_full_search_would(script: list[tuple[str, int, float]]) -> None:
    worths = Worths()
    holds = EngineHolds(worths)
    now = 0.0
    for what, number, worth in script:
        name, tenant = str(number), b"%d" % (number % 3)
        now += what == "turn"
        if what == "add" and name not in holds:
            worths.of[name] = worth
            holds.add(name, tenant, 1 + number)
        elif what == "remove" and name in holds:
            holds.remove(name)
        elif what == "change" and name in holds:
            worths.of[name] = worth
            holds.changed(name)
        budget = holds.tokens // 2
        by_tenant: dict[bytes, int] = {}
        for each in holds:
            by_tenant[b"%d" % (int(each) % 3)] = by_tenant.get(b"%d" % (int(each) % 3), 0) + 1 + int(each)
        over = [each for each in holds if by_tenant[b"%d" % (int(each) % 3)] > budget / len(by_tenant)]
        found = holds.first_to_go(budget, now, spared=nobody)
        assert (found is None) == (not over)
        assert found is None or worths.of[found] == min(worths.of[each] for each in over)


def test_looking_for_the_first_to_go_asks_for_few_worths(worths: Worths) -> None:
    holds = filled(worths, *((str(number), b"t", 1, float(number)) for number in range(2000)))
    assert worths.asked == 0, "nobody has asked what goes first"
    holds.prepare(1.0)
    assert worths.asked == 0, "nor is anybody about to"
    holds.near = holds.tokens
    holds.prepare(1.0)
    worths.asked = 0
    for _ in range(500):
        name = holds.first_to_go(100, 1.0, spared=nobody)
        assert name is not None
        holds.remove(name)
    assert worths.asked == 0, "none was overdue"


# -- a mixed load, by tokens saved

BUDGET = 60_000
SECONDS = 900.0


@dataclass
class Talk:
    """One conversation of the load: how long its gaps are, how many turns are left, what it is known by."""

    name: int
    gap: Callable[[], float]
    turns: int
    grows: int
    tokens: int
    calls: bool
    held: Entry | None = field(default=None)


def talks(draw: random.Random) -> list[tuple[float, Talk]]:
    """Return an hour's conversations and when each begins: one-shot requests, chats, and agents with tool loops."""
    found: list[tuple[float, Talk]] = []
    names = itertools.count()
    for begins in itertools.takewhile(
        lambda at: at < SECONDS, itertools.accumulate(iter(lambda: draw.expovariate(0.5), -1.0))
    ):
        sort = draw.random()
        if sort < 0.6:
            talk = Talk(next(names), lambda: 1e9, 1, 0, draw.randint(500, 3000), calls=False)
        elif sort < 0.85:
            talk = Talk(next(names), lambda: draw.lognormvariate(4.0, 0.8), draw.randint(2, 12), 600, 1000, calls=False)
        else:
            talk = Talk(next(names), lambda: draw.lognormvariate(1.2, 0.6), draw.randint(5, 30), 400, 3000, calls=True)
        found.append((begins, talk))
    return found


def saved_by(evict: Callable[[Ledger], None], seed: int) -> int:
    """Return the tokens of history that turns found held, on one engine with one policy of eviction."""
    draw, clock = random.Random(seed), Clock()  # noqa: S311 - no secret
    ledger, saved = Ledger(clock), 0
    queue = [(at, talk.name, talk) for at, talk in talks(draw)]
    heapq.heapify(queue)
    while queue:
        clock.now, _, talk = heapq.heappop(queue)
        source = talk.held if talk.held is not None and ledger._holds(talk.held) else None
        if source is not None:
            saved += source.handle.tokens
            ledger.use(source)
            ledger.saved(source, source.handle.tokens)
        talk.tokens, talk.turns = talk.tokens + talk.grows, talk.turns - 1
        kind = Kind.CALLS if talk.calls and talk.turns else Kind.LATER if source is not None else Kind.FIRST
        history = chat({"role": "user", "content": f"{talk.name} {talk.turns}"})
        times = {"created": clock.now, "deadline": clock.now + 1e9}
        talk.held = entry_of(history, request="r", tokens=talk.tokens, kind=kind, **times)
        ledger.add(talk.held)
        if source is not None:
            ledger.retire(source, Fate.REPLACED)
        evict(ledger)
        ledger.due_releases()
        assert ledger.held_tokens("d1") <= BUDGET
        if talk.turns:
            heapq.heappush(queue, (clock.now + talk.gap(), talk.name, talk))
    return saved


def oldest_first(ledger: Ledger) -> None:
    for entry in list(ledger):
        if ledger.tokens <= BUDGET:
            break
        ledger.retire(entry, Fate.REPLACED)


def least_valuable_first(ledger: Ledger) -> None:
    ledger.keep_within("d1", BUDGET)


def test_on_a_mixed_load_it_saves_more_tokens_than_taking_the_oldest() -> None:
    oldest, least = saved_by(oldest_first, 1), saved_by(least_valuable_first, 1)
    assert least > 1.15 * oldest, f"oldest first saves {oldest} tokens, least valuable first {least}"


def test_holds_that_are_gone_take_no_memory(worths: Worths) -> None:
    holds = filled(worths, ("stays", b"t", 10, 1.0))
    holds.near = 0.0
    for number in range(1000):
        name = f"hold-{number}"
        worths.of[name] = 2.0
        holds.add(name, b"t", 10)
        holds.changed("stays")
        holds.prepare(0.0)
        holds.remove(name)
    (ranking,) = holds._tenants.values()
    assert max(len(ranking._heap), len(ranking._due)) < 100
    assert holds.first_to_go(5, 0.0, spared=nobody) == "stays"
