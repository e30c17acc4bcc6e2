"""Long histories: what was read before is not read again, and comes to the same."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_router.ledger.beginnings import LONG_BYTES, MAX_AT_A_PLACE, Beginnings
from duplex_router.ledger.chain import Chain

SEED = b"seed"
LONG = "lorem ipsum " * (LONG_BYTES // 8)


class Reader:
    """Reads arrays of texts as a history's parts, and counts them."""

    def __init__(self, limit: int = 8) -> None:
        self.beginnings = Beginnings(limit)
        self.read_parts = 0

    def _form(self, array: bytes) -> list[bytes]:
        parts = [text.encode() for text in json.loads(array)]
        self.read_parts += len(parts)
        return parts

    def read(self, texts: list[str], before: bytes = SEED) -> tuple[list[bytes], list[int], int]:
        """Return marks and ends, and how many parts had to be read."""
        return self.read_array(json.dumps(texts, separators=(",", ":")).encode(), before)

    def read_array(self, written: bytes, before: bytes = SEED) -> tuple[list[bytes], list[int], int]:
        """Do the same with an array as it is written."""
        self.read_parts = 0
        array = memoryview(written)
        chain, ends = self.beginnings.read(array, before, Chain(before), self._form)
        return chain.marks, ends, self.read_parts


def afresh(texts: list[str], before: bytes = SEED) -> tuple[list[bytes], list[int]]:
    marks, ends, _ = Reader().read(texts, before)
    return marks, ends


def test_only_what_follows_a_known_beginning_is_read() -> None:
    reader = Reader()
    history = [LONG]
    for turn in range(6):
        marks, ends, count = reader.read(history)
        assert (marks, ends) == afresh(history)
        assert count == (2 if turn else 1)
        history += [f"reply {turn}", f"question {turn} " * 100]
    assert reader.read(history[:-2])[2] == 0, "the same once more"


@pytest.mark.parametrize(
    "other",
    [[LONG, "c", "b"], [LONG, "c", "b", "d"], [LONG + "a"], [LONG[:-1], "x", "y"], ["x", LONG], [LONG], [LONG, "a,"]],
)
def test_what_differs_is_read(other: list[str]) -> None:
    reader = Reader()
    reader.read([LONG, "a", "b"])
    assert reader.read(other)[:2] == afresh(other)


def test_a_known_beginning_ends_with_an_item() -> None:
    reader = Reader()
    reader.read([LONG, "a"])
    assert reader.read_array(b'["%b","a" ,"b"]' % LONG.encode())[:2] == afresh([LONG, "a", "b"])


def test_what_stands_before_an_array_tells_two_apart() -> None:
    reader = Reader()
    reader.read([LONG, "a"])
    marks, ends, count = reader.read([LONG, "a"], b"other")
    assert (marks, ends) == afresh([LONG, "a"], b"other")
    assert count == 2


def test_few_are_kept() -> None:
    reader = Reader(limit=2)
    for number in range(2 * MAX_AT_A_PLACE):
        reader.read([LONG, str(number) * 9])
    assert reader.read([LONG, str(2 * MAX_AT_A_PLACE - 1) * 9])[2] == 0
    assert reader.read([LONG, "0" * 9])[2] == 2
    for number in range(3):
        reader.read([str(number) + LONG])
    assert reader.read(["2" + LONG])[2] == 0
    assert reader.read(["0" + LONG])[2] == 1


EDITS = st.lists(
    st.tuples(st.sampled_from(["more", "more", "cut", "edit"]), st.integers(0, 9), st.text(max_size=3)), max_size=8
)


@settings(deadline=None, max_examples=60)
@given(EDITS)
def test_any_edits_of_a_conversation_come_to_what_reading_all_of_it_does(
    edits: list[tuple[str, int, str]],
) -> None:
    reader, history = Reader(), [LONG, "first"]
    for what, where, text in edits:
        at = where % len(history)
        if what == "more":
            history = [*history, text * 1000, text]
        elif what == "cut":
            history = history[: at + 1]
        else:
            history = [*history[:at], history[at] + text, *history[at + 1 :]]
        if sum(map(len, history)) > LONG_BYTES:
            assert reader.read(history)[:2] == afresh(history)
