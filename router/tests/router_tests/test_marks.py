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
