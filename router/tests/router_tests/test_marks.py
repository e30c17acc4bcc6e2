"""The index of marks, against the plainest one."""

from hypothesis import given
from hypothesis import strategies as st

from duplex_router.ledger.marks import Marks

HISTORIES = [[b"a"], [b"a", b"b"], [b"a", b"b", b"c"], [b"a", b"x"], [b"y"]]
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 2 * len(HISTORIES) - 1)), max_size=30)


@given(STEPS)
def test_items_are_found_by_their_marks_the_newest_first(steps: list[tuple[bool, int]]) -> None:
    marks: Marks[int] = Marks()
    there: list[int] = []
    for added, item in steps:
        history = HISTORIES[item % len(HISTORIES)]
        if added and item not in there:
            marks.add(history, item)
            there.append(item)
        elif not added:
            marks.remove(history, item)
            there = [each for each in there if each != item]
        for mark in (b"a", b"b", b"c", b"x", b"y", b"z"):
            found = [each for each in reversed(there) if mark in HISTORIES[each % len(HISTORIES)]]
            assert marks.newest(mark, 2) == found[:2]
            assert marks.count(mark) == len(found)
            assert (mark in marks) == bool(found)
        for history in HISTORIES:
            assert marks.known(history) == sum(mark in marks for mark in history)
    for item in there:
        marks.remove(HISTORIES[item % len(HISTORIES)], item)
    assert len(marks) == 0
    assert not any(marks.newest(mark, 9) for mark in (b"a", b"b", b"y"))


@given(st.lists(st.binary(min_size=1, max_size=1), max_size=3), *[st.lists(st.sampled_from("abc"), max_size=4)] * 2)
def test_what_goes_on_from_an_item_is_found_in_its_place(
    others: list[bytes], replaced: list[str], continuing: list[str]
) -> None:
    def chained(names: list[str]) -> list[bytes]:
        return ["".join(names[: end + 1]).encode() for end in range(len(names))]

    former, later = chained(replaced), chained(continuing)
    same = sum(one == other for one, other in zip(former, later, strict=False))
    put: Marks[str] = Marks()
    anew: Marks[str] = Marks()
    for marks in (put, anew):
        for number, other in enumerate([[*former[:1]], [*later[:2]], [each for each in others if each not in b"abc"]]):
            marks.add(other, f"other {number}")
        marks.add(former, "former")
    put.replace("former", former, "new", later, same)
    anew.remove(former, "former")
    anew.add(later, "new")
    for mark in {*former, *later, *others}:
        assert put.newest(mark, 9) == anew.newest(mark, 9)
        assert put.count(mark) == anew.count(mark)
    put.remove(later, "new")
    assert all("new" not in put.newest(mark, 9) for mark in later)
