"""What is read of bytes in one pass each: in C where that was compiled (router/csrc), else in Python or not at all.

A function that returns None cannot tell: its caller then reads in another way, which is the reference for this one. So
the C side needs no rules for what is unusual, and an install without a compiler lacks nothing but speed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from .errors import WireError
from .fields import Piece, Value, compact_size, split_object

try:
    from . import _scan as _native
except ImportError:
    if TYPE_CHECKING:
        raise
    _native = None

MAX_LENGTH_DIGITS = 18
_ZERO = ord("0")

COMPILED = _native is not None

_LIKE_ONE = re.compile(rb'[^"\\\x00-\x1f]*(?:\\["\\bfnrt][^"\\\x00-\x1f]*)*')
"""A text as it stands in JSON, without escapes that need not be."""

_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_EVENT = re.compile(rb"data: [^\n]*\n\n")
_CRLF = b"\r\n"


def _walk(data: bytes, position: int, before: bytes, after: bytes) -> tuple[int, bytes, int, int]:
    texts: list[bytes] = []
    around = len(before) + len(after)
    event_start = event_stop = -1
    while line := _CHUNK.match(data, position):
        start = line.end()
        stop = start + int(line[1], 16)
        if data[stop : stop + 2] != _CRLF:
            break
        text = data[start + len(before) : stop - len(after)]
        like = (
            before and stop - start >= around and data.startswith(before, start) and data.endswith(after, start, stop)
        )
        if not like or not _LIKE_ONE.fullmatch(text):
            if _EVENT.fullmatch(data, start, stop):
                event_start, event_stop = start + 6, stop - 2
            break
        texts.append(text)
        position = stop + 2
    return position, b"".join(texts), event_start, event_stop


class _Lane:
    __slots__ = ("_after", "_before", "_texts", "_write")

    def __init__(self, before: bytes, after: bytes, texts: list[bytes], write: Callable[[bytes], object]) -> None:
        self._before, self._after, self._texts, self._write = before, after, texts, write

    def __call__(self, data: bytes) -> bool:
        position, text, _, _ = _walk(data, 0, self._before, self._after)
        if not data or position < len(data):
            return False
        self._texts.append(text)
        self._write(data)
        return True


def _split_fields(body: Piece) -> tuple[bytes, list[Value]] | None:
    """Do it where nothing but the order of names is to be told: without white space, and each name once and plain."""
    try:
        fields = split_object(body)
    except WireError:
        return None
    if not fields or compact_size(fields) != len(body):
        return None
    return b",".join([msgspec.json.encode(name) for name in fields]), list(fields.values())


def _length_between(before: bytes, head: bytes, after: bytes) -> int:
    start, stop = len(before), len(head) - len(after)
    if not 0 < stop - start <= MAX_LENGTH_DIGITS or not head.startswith(before) or not head.endswith(after):
        return -1
    digits = head[start:stop]
    return int(digits) if digits.isdigit() and digits[0] != _ZERO else -1


def _copy_of(room: bytearray, start: int, stop: int) -> bytes:
    return bytes(memoryview(room)[start:stop])


def _cannot_tell(*_: object) -> None:
    return None


plan: Callable[[Mapping[str, object]], Any] = dict if _native is None else _native.Plan
"""Make a plan for `scan`, once; see router/csrc/plan.c for what it is made of."""

scan: Callable[[Any, bytes, int, int], list[Any] | None] = _cannot_tell if _native is None else _native.scan
"""Return what a plan wants of the JSON object between two offsets."""

walk: Callable[[bytes, int, bytes, bytes], tuple[int, bytes, int, int]] = _walk if _native is None else _native.walk
"""Pass over chunks that are like the last one but for their text.

Takes bytes, where a chunk begins in them, and what stands in its payload before and after the text, `after` with the
quote that ends it; both empty where nothing is known of that. Returns where the first chunk begins that is not such a
one, and the texts of those before it as they stand in JSON; then from where to where the data of that chunk's event
goes, where it is whole and one event of one line of data, else -1 twice.
"""

Lane = Callable[[bytes], bool]
"""Takes bytes that are whole chunks like the last one but for their text, each of which it has kept and passed on as it
came; says False, and has done nothing, where they are anything else."""

lay_lane: Callable[[bytes, bytes, list[bytes], Callable[[bytes], object]], Lane] = (
    _Lane if _native is None else _native.Lane
)
"""Make a lane of what `walk` takes, not empty, the list that texts are put into, and what passes bytes on."""

length_between: Callable[[bytes, bytes, bytes], int] = _length_between if _native is None else _native.length_between
"""Return the number between what a head begins and ends with; -1 for another head, or what is no length."""

make_room: Callable[[int], bytearray] = bytearray if _native is None else _native.make_room
"""Return a bytearray of a size, to be filled by who asks: it may hold whatever was in memory."""

copy_of: Callable[[bytearray, int, int], bytes] = _copy_of if _native is None else _native.copy_of
"""Return the bytes between two offsets."""

render_lines: Callable[[Sequence[tuple[bytes, bytes]]], bytes | None] = (
    _cannot_tell if _native is None else _native.render_lines
)
"""Return header lines."""

split_fields: Callable[[Piece], tuple[bytes, list[Value]] | None] = (
    _split_fields if _native is None else _native.split_fields
)
"""Return the names of a JSON object's fields as they stand there, with commas between, and their values."""

plain_messages: Callable[[Value], list[bytes] | None] = _cannot_tell if _native is None else _native.plain_messages
"""Return the canonical form (see ledger) of each message of an array that is plain, and the others as they are."""
