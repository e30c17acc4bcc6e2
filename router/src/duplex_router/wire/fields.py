"""A JSON object as its top-level fields, each value the bytes that came: split, change, join, never re-serialised."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, cast

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


Fields = dict[str, Value]
RawFields = dict[str, Raw]
"""The same, as msgspec makes it."""

NULL: Final = b"null"
MAX_KNOWN_NAMES: Final = 1024
_split: Final = cast("Callable[[Piece], Fields]", msgspec.json.Decoder(RawFields).decode)


def split_object(data: Piece) -> Fields:
    """Return the fields of a JSON object. The values are views of `data`, validated as JSON but not decoded.

    Of a key that occurs twice the last value counts. Raises WireError where `data` is not one JSON object.
    """
    try:
        return _split(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a JSON object: {error}") from error


def is_text(data: bytes) -> bool:
    """Tell whether bytes are UTF-8. JSON that is kept must be, for what splits it later reads every name.

    Who reads JSON for a few names passes over all others, whatever their bytes are.
    """
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Keys(dict[str, bytes]):
    """Names as they stand in JSON, with their colon. Clients choose names, so only so many are kept."""

    def __missing__(self, name: str) -> bytes:
        if len(self) >= MAX_KNOWN_NAMES:
            self.clear()
        key = self[name] = msgspec.json.encode(name) + b":"
        return key


_KEYS: Final = _Keys()


def field_pieces(fields: Mapping[str, Value]) -> list[Value]:
    """Return, in pieces, the fields as they stand between the braces of a JSON object."""
    keys = _KEYS
    pieces: list[Value] = []
    for name, value in fields.items():
        if pieces:
            pieces.append(b",")
        pieces.append(keys.get(name) or keys[name])
        pieces.append(value)
    return pieces


def join_object(fields: Mapping[str, Value]) -> bytes:
    """Return the fields as a JSON object."""
    return b"".join([b"{", *field_pieces(fields), b"}"])


def escaped(text: str) -> bytes:
    """Return a text as JSON has it between quotes, with no more escapes than it must have."""
    return msgspec.json.encode(text)[1:-1]


def is_null(value: Value) -> bool:
    """Tell whether a value is JSON's null."""
    return len(value) == len(NULL) and bytes(value) == NULL


def compact_size(fields: Mapping[str, Value]) -> int:
    """Return the size of an object with these fields that has no white space and no other field, not even the same."""
    # Each field has two quotes, a colon and a comma or brace; a name that is written in another way is longer.
    size = 1 + 4 * len(fields) + (not fields)
    for name, value in fields.items():
        size += len(name) + len(value)
    return size


def repeated_key(data: Piece, fields: Mapping[str, Value], compact: int) -> str | None:
    """Return a key that occurs more than once at the top level of `data`, whose fields are `fields`; None if none does.

    `compact`: their size. Costs next to nothing where the body has the layout of a common serialiser; only another
    layout is parsed once more.
    """
    # `{"a":1,"b":2}`, or with a space after each colon and comma as Python's json writes it.
    if len(data) in (compact, compact + 2 * len(fields) - 1):
        return None
    pairs = json.loads(bytes(data).decode("utf-8", "replace"), object_pairs_hook=list)
    return _first_repeated(name for name, _ in pairs)


def _first_repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
