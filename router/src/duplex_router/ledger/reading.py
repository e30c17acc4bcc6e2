"""What of a request body makes its history, endpoint by endpoint, and what else decides the rendered prompt.

Engines that prove their tokens get the deepest handle that shares content at all: the chain covers tools, system and
messages and is seeded with little. For stock engines the chain must never say more than is so: it is seeded with
whatever may decide the prompt, and its messages are compared exactly.
"""

from __future__ import annotations

import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Annotated, Final, Protocol, cast

import msgspec
import xxhash

from duplex_router.wire.errors import RequestError
from duplex_router.wire.fields import Fields, RawFields, Value
from duplex_router.wire.inference import Endpoint, Inference
from duplex_router.wire.reply import Reply
from duplex_router.wire.scanner import plain_messages

from .beginnings import LONG_BYTES, Beginnings
from .canonical import canonical_json, message_bytes, reply_message, text_bytes
from .chain import Chain
from .content import Content, content_of
from .history import ID_BYTES, Conversation, History, PlainPrompt
from .items import blocks_bytes, item_bytes, reply_items, system_without_stamp, without_cache_control

NEUTRAL_FIELDS: Final = frozenset(
    {
        "messages",
        "prompt",
        "input",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "length_penalty",
        "logit_bias",
        "stop_token_ids",
        "bad_words",
        "allowed_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "prompt_logprobs",
        "echo",
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "priority",
        "request_id",
        "session_id",
        "conversation_id",
        "parallel_tool_calls",
        "previous_response_id",
        "conversation",
        "background",
        "truncation",
        "max_tool_calls",
        "prompt_cache_options",
        "prompt_cache_retention",
        "include_reasoning",
    }
)
"""Fields that change neither the prompt's tokens nor their KV. Whatever is not known here counts as deciding them."""

SEEDING_FIELDS: Final = ("model", "cache_salt", "chat_template")
"""Fields without which no token's KV can be the same: all that seeds the chain where tokens are proved."""

_SEEDED: Final = frozenset(SEEDING_FIELDS)

PRELUDE_FIELDS: Final = ("tools", "system", "instructions")
"""Fields that a template renders before all messages."""


class PartForm(Protocol):
    """Puts a message, or an item, into canonical form; nothing where it is none of the history."""

    def __call__(self, fields: Fields, /, *, exact: bool) -> bytes:
        """Return the form."""
        ...


ReplyForm = Callable[[Reply], list[bytes]]

_CONTENT: Final = {
    Endpoint.CHAT: "messages",
    Endpoint.COMPLETIONS: "prompt",
    Endpoint.RESPONSES: "input",
    Endpoint.MESSAGES: "messages",
}
_FORMS: dict[Endpoint, tuple[PartForm, ReplyForm]] = {
    Endpoint.CHAT: (message_bytes, reply_message),
    Endpoint.RESPONSES: (item_bytes, reply_items),
    Endpoint.MESSAGES: (blocks_bytes, reply_message),
}
_CHAT: Final = Endpoint.CHAT
_COMPLETIONS: Final = Endpoint.COMPLETIONS
_RESPONSES: Final = Endpoint.RESPONSES
_CHAT_FORMS: Final = _FORMS[_CHAT]
"""An Enum's member is a slow key, and what is looked up on the class is looked up slowly."""

_decode_messages: Final = cast(
    "Callable[[Value], list[Fields]]",
    msgspec.json.Decoder(Annotated[list[RawFields], msgspec.Meta(min_length=1)]).decode,
)
_decode_message: Final = cast("Callable[[bytes], Fields]", msgspec.json.Decoder(RawFields).decode)
_BRACE: Final = ord("{")
_beginnings = Beginnings()
_decode_ids: Final = msgspec.json.Decoder(list[int]).decode


def read_history(request: Inference, *, proved: bool) -> History | None:
    """Return a request's history; None where its content is of no kind that can be followed.

    `proved`: the engines prove the tokens of what they pull. Raises RequestError where the field that should hold the
    content is missing or malformed, so that no engine need be asked.
    """
    name = "messages" if request.endpoint is _CHAT else _CONTENT[request.endpoint]
    raw = request.fields.get(name)
    if raw is None:
        if request.endpoint is Endpoint.COMPLETIONS and "prompt_embeds" in request.fields:
            return None
        raise RequestError(HTTPStatus.BAD_REQUEST, f"The field {name!r} is missing.", param=name)
    shaping = _shaping_of(request, proved=proved)
    shape = _shape_of(request, shaping)
    seed = shape if shaping.seeds else _digest_of(request, SEEDING_FIELDS)
    try:
        return _read(request, raw, seed, shape, proved=proved)
    except (msgspec.DecodeError, RecursionError, OverflowError, UnicodeDecodeError) as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"The field {name!r} is malformed: {error}.", param=name) from error


def _read(request: Inference, raw: Value, seed: bytes, shape: bytes, *, proved: bool) -> History | None:
    if request.endpoint is _COMPLETIONS:
        return _prompt(raw, seed, shape)
    if request.endpoint is _RESPONSES and bytes(memoryview(raw)[:1]) == b'"':
        raw = b'[{"role":"user","content":%b}]' % bytes(raw)  # a text is one message of the user's
    form, reply_form = _CHAT_FORMS if request.endpoint is _CHAT else _FORMS[request.endpoint]
    if not proved:
        parts = _parts(raw, form, exact=True)
        chain = Chain(seed)
        return Conversation(chain, chain.add_parts(parts), shape, reply_form, content=content_of(parts))
    chain, before = _after_prelude(request, seed)
    if len(raw) > LONG_BYTES:
        chain, ends = _beginnings.read(memoryview(raw), before, chain, lambda rest: _parts(rest, form, exact=False))
    else:
        ends = chain.add_parts(_parts(raw, form, exact=False))
    return Conversation(chain, ends, shape, reply_form, content=Content.UNPROBED)


def _parts(array: Value, form: PartForm, *, exact: bool) -> list[bytes]:
    """Return the canonical forms of an array's messages or items; see `PartForm`."""
    told = plain_messages(array) if form is message_bytes else None
    if told is not None:
        return [part if part[0] != _BRACE else form(_decode_message(part), exact=exact) for part in told]
    found = [form(message, exact=exact) for message in _decode_messages(array)]
    return [part for part in found if part]


def _value(request: Inference, name: str) -> object:
    """Return what counts of a field; None where it is absent or null."""
    raw = request.fields.get(name)
    value: object = None if raw is None else msgspec.json.decode(raw)
    if request.endpoint is not Endpoint.MESSAGES:
        return value
    return system_without_stamp(value) if name == "system" else without_cache_control(value)


class _Shaping:
    """Those of a request's fields that may decide its prompt besides what the chain itself covers, in order.

    `seeds`: nothing else seeds the chain. `digests`: of the values of these fields, as they were written; clients
    choose them, so only so many are kept, and no long ones.
    """

    __slots__ = ("digests", "names", "seeds")

    def __init__(self, names: Iterable[str], *, proved: bool) -> None:
        present = frozenset(names)
        others = present - NEUTRAL_FIELDS - _SEEDED - frozenset(PRELUDE_FIELDS if proved else ())
        self.names = [name for name in SEEDING_FIELDS if name in present] + sorted(others)
        self.seeds = not proved or not others
        self.digests: dict[bytes, bytes] = {}


def _shaping_of(request: Inference, *, proved: bool) -> _Shaping:
    key = "proved" if proved else "exact"
    known = request.derived.get(key)
    if isinstance(known, _Shaping):
        return known
    made = request.derived[key] = _Shaping(request.names, proved=proved)
    return made


def _shape_of(request: Inference, shaping: _Shaping) -> bytes:
    """Return the digest of the fields that may decide the prompt: requests of the same names share it by values."""
    fields, names = request.fields, shaping.names
    written = b"\0".join([fields[name] for name in names])  # no JSON has this byte
    if len(written) > MAX_KNOWN_VALUE_BYTES:
        return _digest_of(request, names)
    digest = shaping.digests.get(written)
    if digest is None:
        if len(shaping.digests) >= MAX_KNOWN_DIGESTS:
            shaping.digests.clear()
        digest = shaping.digests[written] = _digest_of(request, names)
    return digest


MAX_KNOWN_DIGESTS: Final = 256
MAX_KNOWN_VALUE_BYTES: Final = 1024


def _digest_of(request: Inference, names: Iterable[str]) -> bytes:
    state = xxhash.xxh3_128(request.endpoint.encode())
    for name in names:
        value = _value(request, name)
        if value is not None:
            state.update(b"\0" + name.encode() + b"\0" + canonical_json(value))
    return state.digest()


_preludes: OrderedDict[bytes, Chain] = OrderedDict()
"""Chains with what stands before all messages, by the digest of it as it was written: turns repeat it."""

MAX_PRELUDES: Final = 256


def _after_prelude(request: Inference, seed: bytes) -> tuple[Chain, bytes]:
    """Return a chain with tools, one by one, and what else stands before all messages; and what names it."""
    given = [name for name in PRELUDE_FIELDS if name in request.fields]
    if not given:
        return Chain(seed), seed
    state = xxhash.xxh3_128(seed)
    for name in given:
        state.update(b"\0" + name.encode() + b"\0")
        state.update(request.fields[name])
    before = state.digest()
    known = _preludes.get(before)
    if known is None:
        known = Chain(seed)
        for name in given:
            value = _value(request, name)
            if value is not None:
                known.add_parts(map(canonical_json, value if isinstance(value, list) else [value]))
        _preludes[before] = known
        if len(_preludes) > MAX_PRELUDES:
            _preludes.popitem(last=False)
    return known.copy(), before


def _prompt(raw: Value, seed: bytes, shape: bytes) -> PlainPrompt | None:
    start = bytes(memoryview(raw)[:64])
    if start[:1] == b'"':
        return PlainPrompt(text_bytes(raw), seed, shape, unit=1)
    if start[:1] == b"[" and start[1:].lstrip()[:1] not in (b"[", b'"'):
        ids = array.array("I", _decode_ids(raw))
        return PlainPrompt(ids.tobytes(), seed, shape, unit=ID_BYTES)
    return None
