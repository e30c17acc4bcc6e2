"""A JSON object as its top-level fields, each value the bytes that came: split, change, join, never re-serialised."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw

from .errors import WireError

Piece = bytes | bytearray | memoryview
Fields = dict[str, Raw]

NULL = b"null"
_split = msgspec.json.Decoder(Fields).decode


def split_object(data: Piece) -> Fields:
    """Return the fields of a JSON object. The values are views of `data`, validated as JSON but not decoded.

    Of a key that occurs twice the last value counts. Raises WireError where `data` is not one JSON object.
    """
    try:
        return _split(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a JSON object: {error}") from error


@functools.lru_cache(maxsize=1024)
def _key(name: str) -> bytes:
    return msgspec.json.encode(name) + b":"


def join_fields(fields: Mapping[str, Raw | bytes]) -> bytes:
    """Return the fields as they stand between the braces of a JSON object."""
    return b",".join([_key(name) + bytes(value) for name, value in fields.items()])


def join_object(fields: Mapping[str, Raw | bytes]) -> bytes:
    """Return the fields as a JSON object."""
    return b"{" + join_fields(fields) + b"}"


def is_null(value: Raw | bytes) -> bool:
    """Tell whether a value is JSON's null."""
    return len(value) == len(NULL) and bytes(value) == NULL


def repeated_key(data: Piece, fields: Mapping[str, Raw]) -> str | None:
    """Return a key that occurs more than once at the top level of `data`, whose fields are `fields`; None if none does.

    Costs an addition where the body has the layout of a common serialiser; only another layout is parsed once more.
    """
    count = len(fields)
    compact = 1 + sum(len(_key(name)) + len(value) + 1 for name, value in fields.items()) + (count == 0)
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
