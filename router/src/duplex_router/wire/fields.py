"""A JSON object as its top-level fields, each value the bytes that came: split, change, join, never re-serialised."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec
from msgspec import Raw

from .errors import WireError

Piece = bytes | bytearray | memoryview


class Value(Protocol):
    """Bytes, or msgspec's Raw, which its stub says to be bytes and which is none: compiled code is told the truth."""

    def __len__(self) -> int:
        """See `bytes`."""
        ...

    def __buffer__(self, flags: int, /) -> memoryview:
        """See `bytes`."""
        ...


Fields = dict[str, Raw]

NULL = b"null"
MAX_KNOWN_NAMES = 1024
_split = msgspec.json.Decoder(Fields).decode


def split_object(data: Piece) -> Fields:
    """Return the fields of a JSON object. The values are views of `data`, validated as JSON but not decoded.

    Of a key that occurs twice the last value counts. Raises WireError where `data` is not one JSON object.
    """
    try:
        return _split(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a JSON object: {error}") from error


class _Keys(dict[str, bytes]):
    """Names as they stand in JSON, with their colon. Clients choose names, so only so many are kept."""

    def __missing__(self, name: str) -> bytes:
        if len(self) >= MAX_KNOWN_NAMES:
            self.clear()
        key = self[name] = msgspec.json.encode(name) + b":"
        return key


_KEYS = _Keys()


def join_fields(fields: Mapping[str, Value]) -> bytes:
    """Return the fields as they stand between the braces of a JSON object."""
    keys = _KEYS
    pieces: list[Value] = []
    for name, value in fields.items():
        pieces += (keys[name], value, b",")
    return b"".join(pieces[:-1])


def join_object(fields: Mapping[str, Value]) -> bytes:
    """Return the fields as a JSON object."""
    return b"{" + join_fields(fields) + b"}"


def is_null(value: Value) -> bool:
    """Tell whether a value is JSON's null."""
    return len(value) == len(NULL) and bytes(value) == NULL


def repeated_key(data: Piece, fields: Mapping[str, Raw]) -> str | None:
    """Return a key that occurs more than once at the top level of `data`, whose fields are `fields`; None if none does.

    Costs an addition where the body has the layout of a common serialiser; only another layout is parsed once more.
    """
    count = len(fields)
    names = "".join(fields)
    # Each field has two quotes, a colon and a comma or brace; a name that is written in another way is longer.
    compact = 1 + len(names) + sum(map(len, fields.values())) + 4 * count + (count == 0)
    # `{"a":1,"b":2}`, or with a space after each colon and comma as Python's json writes it.
    if len(data) in (compact, compact + 2 * count - 1):
        return None
    pairs = json.loads(bytes(data), object_pairs_hook=list)
    return _first_repeated(name for name, _ in pairs)


def _first_repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
