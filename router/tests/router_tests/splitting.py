"""Cuts bytes into any pieces, for tests that nothing depends on how they arrive."""

import itertools

from hypothesis import strategies as st


def cut(data: st.DataObject, wire: bytes) -> list[bytes]:
    marks = sorted(data.draw(st.sets(st.integers(0, len(wire)), max_size=8)) | {0, len(wire)})
    return [wire[start:end] for start, end in itertools.pairwise(marks)]
