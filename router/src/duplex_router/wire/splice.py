"""vLLM's kv_transfer_params as bytes within an answer: where they stand, and what is put into their `duplex` object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from duplex_connector.contract import Params

from .fields import Value, is_null, join_object, split_object
from .plans import OWN_KEEP, OWN_START, OWN_STOP, OWN_THRESHOLD, OWN_TTL
from .shapes import EngineParams, HandleKeys, OwnParams, decode_own

FINISHED_BY_ERROR: Final = "error"


def _has_ours(own: OwnParams) -> bool:
    """Tell whether a `duplex` object has a key that is the router's to add."""
    return len(own.ttl) + len(own.threshold) + len(own.keep) > 0


def told_own_at(data: bytes, found: list[Any], own: int, start: int, stop: int) -> int:
    """Return what `read_params` does, of params from `start` to `stop` whose `duplex` object is told from `own` on."""
    if found[own + OWN_START] is None:
        return 0
    own_start: int = found[own + OWN_START]
    own_stop: int = found[own + OWN_STOP]
    before = own_start - len(_OWN_FIELD)
    if own_stop != stop - 1 or before < start or data[before : own_start + 2] != _OWN_OPENING:
        return 0
    ours = (
        found[own + OWN_TTL] is not None or found[own + OWN_THRESHOLD] is not None or found[own + OWN_KEEP] is not None
    )
    return 0 if ours else own_start - start


_Keys = TypeVar("_Keys", EngineParams, HandleKeys)


def read_params(params: bytes, decode: Callable[[bytes], _Keys]) -> tuple[_Keys, OwnParams | None, int]:
    """Return what params say, their `duplex` object, and where that begins if keys of ours can be added to it in place.

    It can where it stands last and is not empty, as engines write it: then both parts are JSON and are read apart, so
    that each byte is read once.
    """
    at = params.rfind(_OWN_OPENING) + len(_OWN_FIELD)
    if at > len(_OWN_FIELD) and params.endswith(_BOTH_ENDS):
        try:
            keys = decode(b"%b}" % params[: at - len(_OWN_FIELD)])
            own = decode_own(params[at:-1])
            if is_null(keys.duplex):
                return keys, own, 0 if _has_ours(own) else at
        except msgspec.DecodeError:
            pass  # what was found stands deeper
    keys = decode(params)
    return keys, None if is_null(keys.duplex) else decode_own(keys.duplex), 0


_KEY: Final = b'"%b":' % Params.FIELD.encode()
_OPENING: Final = _KEY + b"{"
_OWN_FIELD: Final = f',"{Params.DUPLEX}":'.encode()
_OWN_OPENING: Final = _OWN_FIELD + b'{"'
_BOTH_ENDS: Final = b"}}"


def cut_at_end(data: bytes) -> tuple[bytes, bytes] | None:
    """Return an answer with null for its kv_transfer_params, and these, where they stand last as engines write them.

    None where they do not. What is cut so is right if both parts are JSON, which their readers see: then the key
    stands at the top, and once. So each byte is read once.
    """
    at = data.find(_OPENING)
    if at < 0 or not data.endswith(_BOTH_ENDS):
        return None
    at += len(_KEY)
    return b"%bnull}" % data[:at], data[at:-1]


def with_duplex(fields: Mapping[str, Value], more: Mapping[str, bytes]) -> bytes:
    """Return params as JSON, with more keys in their `duplex` object."""
    rest = {name: value for name, value in fields.items() if name != Params.DUPLEX}
    given = fields.get(Params.DUPLEX)
    inner: dict[str, Value] = dict(split_object(bytes(given))) if given and not is_null(given) else {}
    inner.update(more)
    return join_object({**rest, Params.DUPLEX: join_object(inner)})


_numbers: dict[float, bytes] = {}
MAX_KNOWN_NUMBERS: Final = 64


def number(value: float) -> bytes:
    """Return a number as JSON, a whole one without a fraction."""
    known = _numbers.get(value)
    if known is None:
        if len(_numbers) >= MAX_KNOWN_NUMBERS:
            _numbers.clear()
        known = _numbers[value] = msgspec.json.encode(int(value) if value == int(value) else value)
    return known
