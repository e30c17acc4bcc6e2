"""The fleet document's version: higher with every change, and only then."""

from typing import Any

from duplex_operator.plan import next_fleet
from duplex_operator.plan.fleet import version_of


def document(content: str) -> Any:
    return lambda version: {"version": list(version), "content": content}


def test_the_first_document_begins_the_leaders_term() -> None:
    assert next_fleet(None, 3, document("a")) == ({"version": [3, 1], "content": "a"}, True)


def test_an_unchanged_document_keeps_its_version_also_under_a_new_leader() -> None:
    seen = {"version": [3, 7], "content": "a"}
    assert next_fleet(seen, 5, document("a")) == (seen, False)


def test_a_change_counts_on_under_the_same_and_under_a_new_leader() -> None:
    seen = {"version": [3, 7], "content": "a"}
    assert next_fleet(seen, 3, document("b")) == ({"version": [3, 8], "content": "b"}, True)
    assert next_fleet(seen, 4, document("b")) == ({"version": [4, 8], "content": "b"}, True)


def test_a_lease_that_lost_its_count_does_not_make_routers_ignore_the_document() -> None:
    seen = {"version": [9, 7], "content": "a"}
    assert next_fleet(seen, 1, document("b"))[0]["version"] == [9, 8]


def test_a_version_that_cannot_be_read_is_none() -> None:
    assert version_of({"version": "new"}) == version_of({}) == version_of(None) == (0, 0)
