"""An entry as bytes, for a store that several routers share. Times are Unix times there: a store knows no other clock.

A record is a magic, a checksum, and a MessagePack array; the magic changes with its layout. Whatever else is found
under a key of ours (another version's record, a cut one, a foreign value) is no record: its reader goes on as after a
miss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import xxhash

from duplex_router.wire.errors import WireError
from duplex_router.wire.params import read_handle

from .ledger import Entry
from .returns import Kind

MAGIC = b"dxl3"
MARK_BYTES = 16
LONGEST_SECONDS = 7 * 24 * 3600.0
"""No deadline lies further ahead (a guarded engine holds no longer): what says so has a wrong clock."""

_SUM_BYTES = 8
_HEAD_BYTES = len(MAGIC) + _SUM_BYTES


class RecordError(Exception):
    """Bytes that are no record of this version, or one that cannot be right. The message says why."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """One moment on this router's clock and in Unix time: what turns the one into the other."""

    own: float
    wall: float

    def to_wall(self, own: float) -> float:
        """Return a time of this router's clock as Unix time."""
        return own - self.own + self.wall

    def to_own(self, wall: float) -> float:
        """Return a Unix time on this router's clock."""
        return wall - self.wall + self.own


class _Record(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Field order is the layout: `MAGIC` changes with it."""

    params: bytes
    engine: str
    revision: str
    tenant: bytes
    marks: bytes
    depth: int
    whole: bytes
    length: int
    shape: bytes
    created: float
    deadline: float
    tokens_known: tuple[tuple[int, int], ...]
    margin: float
    prefill: str
    kind: Kind
    saves: float


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Record).decode


def encode_entry(entry: Entry, clocks: Clocks) -> bytes:
    """Return an entry's record: its handle as it would be offered now, and all that a match needs."""
    record = _Record(
        params=entry.handle.encode(),
        engine=entry.engine,
        revision=entry.revision,
        tenant=entry.tenant,
        marks=b"".join(entry.marks),
        depth=entry.depth,
        whole=entry.whole,
        length=entry.length,
        shape=entry.shape,
        created=clocks.to_wall(entry.created),
        deadline=clocks.to_wall(entry.deadline),
        tokens_known=entry.tokens_known,
        margin=entry.margin,
        prefill=entry.prefill,
        kind=entry.kind,
        saves=entry.saves,
    )
    payload = _encode(record)
    return MAGIC + xxhash.xxh3_64_digest(payload) + payload


def decode_entry(data: bytes, clocks: Clocks) -> Entry:
    """Return the entry of a record, new and in no ledger. Raises RecordError; a record past its deadline is none."""
    if data[: len(MAGIC)] != MAGIC:
        raise RecordError("not a record of this version")
    payload = data[_HEAD_BYTES:]
    if xxhash.xxh3_64_digest(payload) != data[len(MAGIC) : _HEAD_BYTES]:
        raise RecordError("its checksum is wrong")
    try:
        record = _decode(payload)
        handle = read_handle(record.params)
    except (msgspec.DecodeError, WireError) as error:
        raise RecordError(f"it cannot be read: {error}") from error
    _check(record, clocks)
    marks = record.marks
    return Entry(
        handle=handle,
        engine=record.engine,
        revision=record.revision,
        tenant=record.tenant,
        marks=[marks[start : start + MARK_BYTES] for start in range(0, len(marks), MARK_BYTES)],
        depth=record.depth,
        whole=record.whole,
        length=record.length,
        shape=record.shape,
        created=clocks.to_own(record.created),
        deadline=clocks.to_own(record.deadline),
        tokens_known=record.tokens_known,
        margin=record.margin,
        prefill=record.prefill,
        kind=record.kind,
        saves=record.saves,
    )


def _check(record: _Record, clocks: Clocks) -> None:
    """Refuse what a checksum cannot: values that a router with a fault or another clock may have written."""
    if not record.marks or len(record.marks) % MARK_BYTES:
        raise RecordError("its marks are cut")
    if not all(math.isfinite(value) for value in (record.created, record.deadline, record.margin, record.saves)):
        raise RecordError("it has values that are no numbers")
    if not clocks.wall < record.deadline <= clocks.wall + LONGEST_SECONDS:
        raise RecordError("its deadline has passed, or is too far ahead")
    if not 0 < record.depth <= len(record.marks) // MARK_BYTES:
        raise RecordError("its prompt is longer than its marks")
    if (
        not 0 <= record.saves <= 1
        or record.margin < 0
        or record.length < 0
        or any(min(pair) < 0 for pair in record.tokens_known)
    ):
        raise RecordError("it has values out of their range")
