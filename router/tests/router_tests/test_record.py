"""Records: an entry comes back as it was, on another router's clock; anything else is no record and raises no other."""

import json

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from duplex_router.ledger.ledger import Entry
from duplex_router.ledger.record import LONGEST_SECONDS, MAGIC, Clocks, RecordError, decode_entry, encode_entry

from .test_history import ASK, chat
from .test_ledger import NEXT, REPLY, entry_of

HERE = Clocks(own=100.0, wall=1_700_000_000.0)
THERE = Clocks(own=5_000_000.0, wall=1_700_000_010.0)


def full_entry() -> Entry:
    history = chat(ASK, REPLY, NEXT)
    return entry_of(
        history,
        depth=2,
        tokens_known=((1, 20), (3, 60)),
        prefill="p1",
        margin=8.5,
        created=90.0,
        deadline=200.0,
    )


def comparable(entry: Entry) -> dict[str, object]:
    values = {name: getattr(entry, name) for name in dir(entry) if not name.startswith("_")}
    fields = {name: value for name, value in values.items() if not callable(value)}  # compiled, it has no __slots__
    return {**fields, "handle": json.loads(entry.handle.encode())}


def test_an_entry_comes_back_with_its_times_moved_to_the_readers_clock() -> None:
    entry = full_entry()
    found = decode_entry(encode_entry(entry, HERE), THERE)
    # Ten seconds have passed on the wall: what was 100 s ahead is 90 s ahead.
    assert found.deadline - THERE.own == 90.0
    assert found.created - THERE.own == -20.0
    found.deadline, found.created, found.used = entry.deadline, entry.created, entry.used
    assert comparable(found) == comparable(entry)


def test_an_entry_in_use_comes_back_free() -> None:
    entry = full_entry()
    entry.pulls, entry.turns, entry.retired = 2, 3, True
    found = decode_entry(encode_entry(entry, HERE), HERE)
    assert (found.pulls, found.turns, found.retired) == (0, 0, False)


def test_a_renewed_handle_is_written_with_the_expiry_that_it_has_now() -> None:
    entry = full_entry()
    assert entry.handle.expiry is not None
    entry.handle.expiry += 30.25
    found = decode_entry(encode_entry(entry, HERE), HERE)
    assert found.handle.expiry == entry.handle.expiry
    assert json.loads(found.handle.offer(64)) == json.loads(entry.handle.offer(64))


@given(st.binary(max_size=200))
def test_foreign_bytes_are_no_record(data: bytes) -> None:
    for value in (data, MAGIC + data, MAGIC + xxhash.xxh3_64_digest(data) + data):
        with pytest.raises(RecordError):
            decode_entry(value, HERE)


@given(st.data())
def test_a_record_with_any_bit_changed_or_any_byte_missing_is_none(data: st.DataObject) -> None:
    record = bytearray(encode_entry(full_entry(), HERE))
    where = data.draw(st.integers(0, len(record) - 1))
    cut = bytes(record[:where])
    record[where] ^= 1 << data.draw(st.integers(0, 7))
    for value in (cut, bytes(record)):
        with pytest.raises(RecordError):
            decode_entry(value, HERE)


def rewritten(**changes: object) -> bytes:
    """Return a record whose checksum is right and whose fields are not."""
    names = [
        "params", "engine", "revision", "tenant", "marks", "depth", "whole", "length", "shape", "created",
        "deadline",
        "tokens_known", "margin", "prefill", "kind", "saves",
    ]  # fmt: skip
    fields = dict(zip(names, msgspec.msgpack.decode(encode_entry(full_entry(), HERE)[12:]), strict=True))
    payload = msgspec.msgpack.encode([*{**fields, **changes}.values()])
    return MAGIC + xxhash.xxh3_64_digest(payload) + payload


def test_the_unchanged_fields_make_a_record() -> None:
    assert decode_entry(rewritten(), HERE).engine == "d1"


@pytest.mark.parametrize(
    "changes",
    [
        {"params": b"{}"},
        {"params": b"not json"},
        {"params": "text"},
        {"marks": b""},
        {"marks": b"x" * 17},
        {"length": -1},
        {"depth": 0},
        {"depth": 4},
        {"kind": 9},
        {"saves": 1.5},
        {"tokens_known": [[1, -5]]},
        {"margin": -1.0},
        {"margin": float("nan")},
        {"deadline": float("inf")},
        {"deadline": HERE.wall},
        {"deadline": HERE.wall + LONGEST_SECONDS + 1},
        {"created": float("nan")},
        {"unknown": 1},
    ],
)
def test_what_cannot_be_right_is_no_record(changes: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        decode_entry(rewritten(**changes), HERE)
