"""The ledger: the deepest usable handle is found, and every hold is released once, never under a pull."""

import json
from typing import Any

import pytest

from duplex_router.ledger.boundary import unproved_tokens
from duplex_router.ledger.fates import Fate, Fates
from duplex_router.ledger.history import History
from duplex_router.ledger.ledger import Entry, Ledger, Match
from duplex_router.wire.params import read_handle

from .handles import handle_fields
from .test_history import ASK, chat

TENANT = b"tenant"
REPLY = {"role": "assistant", "content": "Two."}
NEXT = {"role": "user", "content": "And then?"}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(clock)


def entry_of(history: History, **changes: Any) -> Entry:
    engine = changes.pop("engine", "d1")
    handle = read_handle(
        json.dumps(
            handle_fields(
                request=changes.pop("request", "r"),
                engine=changes.pop("boot", "boot"),
                tokens=changes.pop("tokens", 40),
            )
        ).encode()
    )
    given: dict[str, Any] = {
        "handle": handle,
        "engine": engine,
        "revision": "r1",
        "tenant": TENANT,
        "marks": history.marks,
        "depth": len(history.marks),
        "shape": history.shape,
        "whole": history.whole,
        "length": history.length,
        "created": 100.0,
        "deadline": 200.0,
    }
    return Entry(**{**given, **changes})


def told(match: Match) -> tuple[Entry | None, int, str]:
    return match.entry, match.depth, match.reason


def anyone(_: Entry) -> str:
    return ""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"depth": 1},
        {"boot": "another"},
        {"tenant": b"another"},
        {"engine": "d2"},
        {"whole": b"another", "marks": [b"another"], "depth": 1},
    ],
)
@pytest.mark.parametrize("pulled", [False, True])
def test_a_handle_in_the_place_of_a_former_one_is_as_if_that_one_had_been_retired_first(
    clock: Clock,
    changes: dict[str, Any],
    pulled: bool,  # noqa: FBT001 - a parameter
) -> None:
    def run(*, replaced: bool) -> list[Any]:
        ledger = Ledger(clock)
        other, branch = entry_of(chat(ASK), request="other"), entry_of(chat(ASK, NEXT), request="branch")
        former = entry_of(
            chat(ASK, REPLY), request="former", depth=len(chat(ASK).marks), whole=chat(ASK).whole, length=1
        )
        new = entry_of(chat(ASK, REPLY, NEXT), request="new", **changes)
        for each in (other, branch, former):
            ledger.add(each)
        if pulled:
            ledger.start_pull(former)
        if replaced:
            ledger.replace(former, new)
        else:
            ledger.retire(former, Fate.REPLACED)
            ledger.add(new)
        released = [entry.handle.request_id for entry in ledger.due_releases()]
        histories = [chat(ASK), chat(ASK, REPLY), chat(ASK, NEXT), chat(ASK, REPLY, NEXT, REPLY)]
        found = [ledger.match(history, tenant, anyone) for history in histories for tenant in (TENANT, b"another")]
        held = sorted(entry.handle.request_id for entry in ledger)
        names = [(match.entry and match.entry.handle.request_id, match.depth, match.reason) for match in found]
        return [released, held, names, ledger.tokens, former.retired]

    assert run(replaced=True) == run(replaced=False)


def test_the_deepest_match_wins(ledger: Ledger) -> None:
    first, second = entry_of(chat(ASK)), entry_of(chat(ASK, REPLY, NEXT))
    ledger.add(second)
    ledger.add(first)
    found = ledger.match(chat(ASK, REPLY, NEXT, REPLY, ASK), TENANT, anyone)
    assert (found.entry, found.depth) == (second, 3)


def test_an_edited_history_matches_up_to_the_edit(ledger: Ledger) -> None:
    entry = entry_of(chat(ASK, REPLY, NEXT))
    ledger.add(entry)
    found = ledger.match(chat(ASK, REPLY, ASK), TENANT, anyone)
    assert (found.entry, found.depth) == (entry, 2)


def test_of_several_replies_to_one_prompt_the_one_that_was_sent_back_is_found(ledger: Ledger) -> None:
    right = entry_of(chat(ASK, REPLY), depth=1, request="a")
    newer = entry_of(chat(ASK, {"role": "assistant", "content": "Three."}), depth=1, request="b")
    ledger.add(right)
    ledger.add(newer)
    assert ledger.match(chat(ASK, REPLY, NEXT), TENANT, anyone).entry is right
    assert ledger.match(chat(ASK, NEXT), TENANT, anyone).entry is newer


def test_of_equal_matches_one_of_the_same_shape_wins_over_a_newer_one(ledger: Ledger) -> None:
    own, newer = entry_of(chat(ASK)), entry_of(chat(ASK, chat_template_kwargs={"enable_thinking": False}))
    ledger.add(own)
    ledger.add(newer)
    assert ledger.match(chat(ASK, NEXT), TENANT, anyone).entry is own
    assert ledger.match(chat(ASK, NEXT, tool_choice="none"), TENANT, anyone).entry is newer


def test_nothing_shared_is_no_match_and_no_reason(ledger: Ledger) -> None:
    ledger.add(entry_of(chat(ASK)))
    assert told(ledger.match(chat(NEXT), TENANT, anyone)) == (None, 0, "")


def test_another_tenants_entry_is_not_matched_even_if_the_digests_were_equal(ledger: Ledger) -> None:
    ledger.add(entry_of(chat(ASK)))
    assert told(ledger.match(chat(ASK), b"other", anyone)) == (None, 0, "tenant")
    ledger._by_tenant[b"other"] = ledger._by_tenant[TENANT]
    assert told(ledger.match(chat(ASK), b"other", anyone)) == (None, 0, "tenant"), "the second guard"


def test_an_entry_is_not_matched_within_the_margin_of_its_deadline(ledger: Ledger, clock: Clock) -> None:
    entry = entry_of(chat(ASK), deadline=200.0, margin=6.0)
    ledger.add(entry)
    clock.now = 193.9
    assert ledger.match(chat(ASK), TENANT, anyone).entry is entry
    clock.now = 194.0
    assert told(ledger.match(chat(ASK), TENANT, anyone)) == (None, 0, "expired")
    assert not ledger.start_pull(entry)


def test_an_unusable_entry_gives_way_to_a_shallower_one(ledger: Ledger) -> None:
    shallow, deep = entry_of(chat(ASK)), entry_of(chat(ASK, REPLY, NEXT))
    ledger.add(shallow)
    ledger.add(deep)
    found = ledger.match(chat(ASK, REPLY, NEXT), TENANT, lambda entry: "gone" if entry is deep else "")
    assert (found.entry, found.depth) == (shallow, 1)


def test_a_new_boot_drops_what_the_old_one_held(ledger: Ledger) -> None:
    old, elsewhere = entry_of(chat(ASK), boot="one"), entry_of(chat(NEXT), boot="one", engine="d2")
    ledger.add(old)
    ledger.add(elsewhere)
    ledger.add(entry_of(chat(REPLY), boot="two"))
    assert ledger.match(chat(ASK), TENANT, anyone).entry is None
    assert ledger.match(chat(NEXT), TENANT, anyone).entry is elsewhere
    assert ledger.due_releases() == []


def test_a_retired_entry_is_released_once_no_pull_runs(ledger: Ledger) -> None:
    entry = entry_of(chat(ASK))
    ledger.add(entry)
    assert ledger.start_pull(entry)
    assert ledger.start_pull(entry)
    ledger.retire(entry, Fate.USELESS)
    assert ledger.match(chat(ASK), TENANT, anyone).entry is None
    assert ledger.due_releases() == []
    ledger.end_pull(entry)
    assert ledger.due_releases() == []
    ledger.end_pull(entry)
    assert ledger.due_releases() == [entry]
    assert ledger.due_releases() == []
    assert len(ledger) == ledger.tokens == 0


def test_a_released_hold_is_not_pulled(ledger: Ledger) -> None:
    entry = entry_of(chat(ASK))
    ledger.add(entry)
    ledger.retire(entry, Fate.USELESS)
    assert not ledger.start_pull(entry)


def test_retiring_twice_releases_once(ledger: Ledger) -> None:
    entry = entry_of(chat(ASK))
    ledger.add(entry)
    ledger.retire(entry, Fate.USELESS)
    ledger.retire(entry, Fate.USELESS)
    assert ledger.due_releases() == [entry]


def test_the_same_history_and_reply_is_held_once(ledger: Ledger) -> None:
    first, second = entry_of(chat(ASK, REPLY), depth=1), entry_of(chat(ASK, REPLY), depth=1)
    other = entry_of(chat(ASK, NEXT), depth=1)
    longer = entry_of(chat(ASK, REPLY, NEXT), depth=3)
    for entry in (first, other, longer, second):
        ledger.add(entry)
    assert ledger.due_releases() == [first]
    assert set(ledger) == {other, longer, second}


def test_lapsed_entries_go_but_not_under_a_pull(ledger: Ledger, clock: Clock) -> None:
    lapsed, pulled = entry_of(chat(ASK)), entry_of(chat(NEXT))
    ledger.add(lapsed)
    ledger.add(pulled)
    ledger.start_pull(pulled)
    clock.now = 200.0
    assert ledger.due()[1] == 1
    assert set(ledger) == {pulled}
    assert ledger.due_releases() == []


def test_the_budget_releases_the_oldest_that_no_turn_uses(ledger: Ledger) -> None:
    used, oldest, newest = (entry_of(chat(each), tokens=50) for each in (ASK, REPLY, NEXT))
    elsewhere = entry_of(chat(ASK, ASK), tokens=500, engine="d2")
    used.turns = 1
    for entry in (used, oldest, newest, elsewhere):
        ledger.add(entry)
    assert ledger.held_tokens("d1") == 150
    assert ledger.keep_within("d1", 100) == 1
    assert ledger.due_releases() == [oldest]
    assert set(ledger) == {used, newest, elsewhere}
    assert (ledger.held_tokens("d1"), ledger.held_tokens("d2"), ledger.tokens) == (100, 500, 600)
    ledger.forget_engine("d2", Fate.ENGINE_GONE)
    assert (ledger.held_tokens("d2"), ledger.tokens) == (0, 100)


def test_all_retire_at_the_end(ledger: Ledger) -> None:
    entries = [entry_of(chat(ASK)), entry_of(chat(NEXT), engine="d2")]
    for entry in entries:
        ledger.add(entry)
    ledger.retire_all()
    assert ledger.due_releases() == entries


def test_stock_engines_are_trusted_to_the_end_of_a_former_prompt_only(ledger: Ledger) -> None:
    entry = entry_of(chat(ASK, REPLY, NEXT), tokens_known=((1, 20), (3, 60)))
    ledger.add(entry)
    whole, edited = chat(ASK, REPLY, NEXT, REPLY, ASK), chat(ASK, REPLY, ASK)
    assert unproved_tokens(ledger, ledger.match(whole, TENANT, anyone), whole).tokens == 60
    assert unproved_tokens(ledger, ledger.match(edited, TENANT, anyone), edited).tokens == 20


def test_stock_handles_are_not_spent_on_history_that_two_share(ledger: Ledger) -> None:
    for request in ({"role": "user", "content": "one"}, {"role": "user", "content": "two"}):
        ledger.add(entry_of(chat(ASK, request), tokens_known=((1, 20), (2, 30))))
    third = chat(ASK, NEXT)
    found = unproved_tokens(ledger, ledger.match(third, TENANT, anyone), third)
    assert (found.tokens, found.reason) == (0, "shared-history")
    own = chat(ASK, {"role": "user", "content": "one"}, REPLY, NEXT)
    assert unproved_tokens(ledger, ledger.match(own, TENANT, anyone), own).tokens == 30


def test_without_a_known_count_nothing_is_trusted(ledger: Ledger) -> None:
    ledger.add(entry_of(chat(ASK)))
    history = chat(ASK, REPLY)
    assert unproved_tokens(ledger, ledger.match(history, TENANT, anyone), history).reason == "unproved"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda ledger, entry: ledger.take(entry, Fate.USED), "used"),
        (lambda ledger, entry: ledger.retire(entry, Fate.USELESS), "useless"),
        (lambda ledger, entry: ledger.forget_engine(entry.engine, Fate.DRAINING), "draining"),
        (lambda ledger, entry: ledger.keep_within(entry.engine, 0), "over-budget"),
        (lambda ledger, _: ledger.add(entry_of(chat(NEXT), boot="another")), "boot"),
        (lambda ledger, _: ledger.retire_all(), "disabled"),
    ],
)
def test_a_miss_knows_what_became_of_the_handle(ledger: Ledger, end: Any, reason: str) -> None:
    entry = entry_of(chat(ASK, REPLY), depth=1)
    ledger.add(entry)
    end(ledger, entry)
    for history in (chat(ASK), chat(ASK, REPLY, NEXT), chat(ASK, {"role": "assistant", "content": "edited"}, NEXT)):
        assert told(ledger.match(history, TENANT, anyone)) == (None, 0, reason)
    assert told(ledger.match(chat(REPLY), TENANT, anyone)) == (None, 0, "")


def test_a_lapsed_handle_is_told_as_expired(ledger: Ledger, clock: Clock) -> None:
    ledger.add(entry_of(chat(ASK)))
    clock.now = 200.0
    ledger.due()
    assert told(ledger.match(chat(ASK), TENANT, anyone)) == (None, 0, "expired")


def test_fates_are_bounded_and_the_oldest_go() -> None:
    fates = Fates(limit=2)
    for number in range(5):
        fates.note(b"%d" % number, TENANT, Fate.EXPIRED)
    assert [fates.why([b"%d" % number], TENANT) for number in range(5)] == ["", "", "expired", "expired", "expired"]
    assert fates.why([b"4"], b"other") == "tenant"


def test_an_empty_ledger_keeps_no_index_of_tenants(ledger: Ledger) -> None:
    for number in range(3):
        entry = entry_of(chat(ASK), tenant=b"%d" % number)
        ledger.add(entry)
        ledger.take(entry, Fate.USED)
    assert ledger._by_tenant == {}
