"""A client's inference request, split once into what both legs share and what each leg has of its own.

The client's `kv_transfer_params` never pass: they would let it name others' memory (vLLM, docs/usage/security.md).
"""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Final

import msgspec

from duplex_connector.contract import SESSION_FIELDS, Params

from .errors import RequestError, WireError
from .fields import NULL, Fields, Piece, Value, compact_size, field_pieces, is_null, repeated_key, split_object
from .scanner import split_fields
from .whole import WHOLE_FIELDS, why_whole


class Endpoint(StrEnum):
    """The inference endpoints that run as two legs."""

    __hash__ = str.__hash__  # an Enum's own is slow, and these are keys

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


class _Legs:
    """What each leg of an endpoint has of its own.

    `path`: where both go. `own`: fields that shape the answer but not the KV: the decode leg has the client's, the
    prefill leg `prefill`. `decode`: what the decode leg has whatever the client says.
    """

    __slots__ = ("decode", "own", "path", "prefill")

    def __init__(self, endpoint: Endpoint, own: frozenset[str], prefill: bytes, decode: bytes = b"") -> None:
        self.path = endpoint.encode()
        self.own = own
        self.prefill = prefill
        self.decode = decode


_COMMON_OWN: Final = frozenset({"stream", "stream_options", "max_tokens"})
_COMPLETION_OWN: Final = _COMMON_OWN | frozenset(
    {
        "max_completion_tokens",
        "min_tokens",
        "n",
        "best_of",
        "logprobs",
        "top_logprobs",
        "logprob_token_ids",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "return_prompt_text",
        "return_weight_versions",
        "stop",
    }
)
_ONE_TOKEN: Final = b'"max_tokens":1,"stream":false'
_LEGS: dict[Endpoint, _Legs] = {
    Endpoint.CHAT: _Legs(Endpoint.CHAT, _COMPLETION_OWN, _ONE_TOKEN),
    Endpoint.COMPLETIONS: _Legs(Endpoint.COMPLETIONS, _COMPLETION_OWN, _ONE_TOKEN),
    # A stored response lives in the memory of the one engine that made it and would never be found again.
    Endpoint.RESPONSES: _Legs(
        Endpoint.RESPONSES,
        own=frozenset({"stream", "stream_options", "max_output_tokens", "top_logprobs", "include", "stop", "store"}),
        prefill=b'"max_output_tokens":1,"stream":false,"store":false',
        decode=b',"store":false',
    ),
    Endpoint.MESSAGES: _Legs(Endpoint.MESSAGES, _COMMON_OWN | {"stop_sequences"}, _ONE_TOKEN),
}

_FOREIGN_FIELDS: Final = (Params.FIELD, Params.ENCODER_FIELD)
"""What names an engine's memory: the router's to say, never a client's."""

_STATE_FIELDS: Final = ("previous_response_id", "background", "conversation")
"""What would make an engine remember something for a later request, which may come to another one."""

_UNIQUE_FIELDS: Final = {
    endpoint: legs.own | {"model", "messages", "prompt", "input", *_STATE_FIELDS, *_FOREIGN_FIELDS, *SESSION_FIELDS}
    for endpoint, legs in _LEGS.items()
}
_TRUE: Final = b"true"
_FALSE: Final = b"false"
_STREAMS: Final = (_TRUE, _FALSE, NULL)
_TOKEN_IDS: Final = b',"return_token_ids":true'
_PARAMS: Final = b',"%b":' % Params.FIELD.encode()


class Inference:
    """One inference request.

    `body`: as it came. `fields`: what both legs share, `names` their names in order, and `common` the same as it stands
    between braces, in pieces; `own`: the client's values of what each leg has for itself. `intact`: the decode leg may
    have the body as it came. `whole`: why the turn cannot be split into two legs, empty where it can. `derived`:
    what others have made of the names alone, whatever the values; requests of the same names share it.
    """

    __slots__ = (
        "_legs", "body", "common", "derived", "endpoint", "fields", "intact", "model", "names", "own", "path",
        "session", "size", "stream", "whole",
    )  # fmt: skip

    def __init__(
        self,
        endpoint: Endpoint,
        body: Piece,
        fields: Fields,
        own: Fields,
        model: str | None,
        *,
        stream: bool,
        session: bytes,
        whole: str,
        common: list[Value],
        intact: bool,
        names: tuple[str, ...],
        derived: dict[str, object],
        legs: _Legs,
    ) -> None:
        self.derived = derived
        self._legs = legs
        self.path = legs.path
        self.endpoint = endpoint
        self.body = body
        self.fields = fields
        self.own = own
        self.size = len(body)
        self.model = model
        self.stream = stream
        self.session = session
        self.whole = whole
        self.common = common
        self.intact = intact
        self.names = names

    @property
    def tells_handle(self) -> bool:
        """Whether the answer carries the handle. vLLM 0.33 streams Anthropic's events without it."""
        return not (self.stream and self.endpoint is _MESSAGES)

    @property
    def takes_token_ids(self) -> bool:
        """Whether decode can be given prefill's token ids, sparing it template and tokenizer (chat, vLLM >= 0.32)."""
        return self.endpoint is _CHAT

    def prefill_body(self, params: bytes, *, token_ids: bool = False) -> list[Value]:
        """Return the prefill leg's body: one token, not streamed, with `params` as its kv_transfer_params.

        `token_ids`: the answer shall name the prompt's.
        """
        own = self._legs.prefill
        return [b"{", *self.common, b",", own, _TOKEN_IDS if token_ids else b"", _PARAMS, params, b"}"]

    def decode_body(self, params: bytes | None) -> list[Value]:
        """Return the decode leg's body: the client's own values, with `params` as its kv_transfer_params."""
        pieces: list[Value]
        if self.intact:
            pieces = [self.body[:-1] if self.size < COPIED_BELOW_BYTES else memoryview(self.body)[:-1]]
        else:
            decode = self._legs.decode
            pieces = [b"{", *self.common, *([b",", *field_pieces(self.own)] if self.own else ()), decode]
        pieces += [b"}"] if params is None else [_PARAMS, params, b"}"]
        return pieces


_decode_text: Final = msgspec.json.Decoder(str).decode


class _Layout:
    """What the names of a body's fields say, whatever their values: clients repeat them.

    `usual`: each stands once, and none is left out or refused. `asks`: one may say that the turn cannot be split.
    `keys`: how each stands in what both legs share, with its comma; empty where it is one leg's own. `names` has both
    kinds, `shared` the former alone.
    """

    __slots__ = ("asks", "derived", "keys", "legs", "names", "session", "shared", "usual")

    def __init__(self, endpoint: Endpoint, names: list[str]) -> None:
        legs = self.legs = _LEGS[endpoint]
        present = set(names)
        self.names = names
        self.shared = tuple(name for name in names if name not in legs.own)
        self.usual = bool(self.shared) and len(present) == len(names) and not legs.decode and not present & _UNUSUAL
        self.asks = not present.isdisjoint(WHOLE_FIELDS)
        self.derived: dict[str, object] = {}
        self.session = next((name for name in SESSION_FIELDS if name in present), "")
        """Which field names the session; empty where none does."""
        self.keys: list[bytes] = []
        comma = b""
        for name in names:
            if name in legs.own:
                self.keys.append(b"")
            else:
                self.keys.append(b'%b"%b":' % (comma, name.encode()))
                comma = b","


_SESSION_FIELDS: Final = list(SESSION_FIELDS)
COPIED_BELOW_BYTES: Final = 16 * 1024
"""From which size on a body is not copied."""

_UNUSUAL: Final = {*_FOREIGN_FIELDS, "vllm_xargs"}
MAX_LAYOUTS: Final = 256
MAX_LAYOUT_BYTES: Final = 1024
_chat_layouts: dict[bytes, _Layout] = {}
_other_layouts: dict[Endpoint, dict[bytes, _Layout]] = {endpoint: {} for endpoint in Endpoint}
"""By endpoint and names. Clients choose these, so only so many are kept."""

_CHAT: Final = Endpoint.CHAT
_MESSAGES: Final = Endpoint.MESSAGES


def _layout_of(endpoint: Endpoint, names: bytes) -> _Layout:
    layouts = _chat_layouts if endpoint is _CHAT else _other_layouts[endpoint]  # an Enum's member is a slow key
    layout = layouts.get(names)
    if layout is None:
        layout = _Layout(endpoint, msgspec.json.decode(b"[%b]" % names))
        if len(names) <= MAX_LAYOUT_BYTES:
            if len(layouts) >= MAX_LAYOUTS:
                layouts.clear()
            layouts[names] = layout
    return layout


def parse_inference(endpoint: Endpoint, body: Piece) -> Inference:
    """Split a request body. Raises RequestError for what no engine should see."""
    split = split_fields(body)
    if split is None:
        return _parse(endpoint, body)
    names, values = split
    layout = _layout_of(endpoint, names)
    return _lay_out(endpoint, body, len(names), values, layout) if layout.usual else _parse(endpoint, body)


def _lay_out(endpoint: Endpoint, body: Piece, names_size: int, values: list[Value], layout: _Layout) -> Inference:
    """Do what `_parse` does, for a body that the layout says enough of."""
    fields: Fields = {}
    own: Fields = {}
    common: list[Value] = []
    compact = 2 + names_size + len(values)  # two braces, and a colon for each
    for position, value in enumerate(values):
        compact += len(value)
        key = layout.keys[position]
        if key:
            fields[layout.names[position]] = value
            common.append(key)
            common.append(value)
        else:
            own[layout.names[position]] = value
    whole = why_whole(fields, own, is_messages=endpoint is _MESSAGES) if layout.asks else ""
    stream = _stream(own)
    return Inference(
        endpoint=endpoint,
        fields=fields,
        own=own,
        body=body,
        model=_model(fields),
        stream=stream,
        session=bytes(fields[layout.session]) if layout.session else b"",
        whole=whole,
        common=common,
        intact=len(body) == compact,
        names=layout.shared,
        derived=layout.derived,
        legs=layout.legs,
    )


def _parse(endpoint: Endpoint, body: Piece) -> Inference:
    try:
        fields = split_object(body)
    except WireError as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"The body must be one JSON object: {error}.") from error
    compact = compact_size(fields)
    twice = repeated_key(body, fields, compact)
    if twice in _UNIQUE_FIELDS[endpoint]:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"Send the field {twice!r} once.", param=twice)
    count = len(fields)
    for name in _FOREIGN_FIELDS:
        fields.pop(name, None)
    _refuse_smuggled_params(fields)
    if endpoint is Endpoint.RESPONSES:
        _refuse_state(fields)
    legs = _LEGS[endpoint]
    # Nothing of it is left out or said anew, no field occurs twice, and another one may follow the last.
    intact = len(body) == compact and len(fields) == count > 0 and not legs.decode
    own = {name: fields.pop(name) for name in [each for each in fields if each in legs.own]}
    whole = why_whole(fields, own, is_messages=endpoint is _MESSAGES)
    stream = _stream(own)
    if legs.decode:
        own.pop("store", None)
    return Inference(
        endpoint=endpoint,
        fields=fields,
        own=own,
        body=body,
        model=_model(fields),
        stream=stream,
        session=_session(fields),
        whole=whole,
        # vLLM takes a null model for its default one: keeps the commas right where the client shares no field.
        common=field_pieces(fields) or [b'"model":null'],
        intact=intact,
        names=tuple(fields),
        derived={},
        legs=legs,
    )


def _refuse_smuggled_params(fields: Fields) -> None:
    # vLLM merges vllm_xargs into the same dict of extra arguments (chat_completion/protocol.py, 0.33.0).
    extra = fields.get("vllm_xargs")
    if extra is None:
        return
    for name in _FOREIGN_FIELDS:
        if name.encode() in bytes(extra):
            message = f"vllm_xargs must not hold {name}: the router sets it."
            raise RequestError(HTTPStatus.BAD_REQUEST, message, param="vllm_xargs")


def _refuse_state(fields: Fields) -> None:
    for name in _STATE_FIELDS:
        raw = fields.get(name)
        if raw is not None and not is_null(raw) and bytes(raw) != _FALSE:
            message = (
                f"{name} is not supported: engines behind this router keep no responses. Send the whole conversation "
                "as input, with store false."
            )
            raise RequestError(HTTPStatus.BAD_REQUEST, message, param=name)


_models: dict[bytes, str] = {}
"""As they were written. Clients choose them, so only so many are kept, and no long ones."""

MAX_KNOWN_MODELS: Final = 256
MAX_KNOWN_MODEL_BYTES: Final = 256


def _model(fields: Fields) -> str | None:
    raw = fields.get("model")
    if raw is None:
        return None
    written = bytes(raw)
    known = _models.get(written)
    if known is not None or written == NULL:
        return known
    try:
        model = _decode_text(raw)
    except msgspec.ValidationError as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, "The field 'model' must be a string.", param="model") from error
    if len(written) <= MAX_KNOWN_MODEL_BYTES:
        if len(_models) >= MAX_KNOWN_MODELS:
            _models.clear()
        _models[written] = model
    return model


def _stream(own: Fields) -> bool:
    value = own.get("stream")
    if value is None:
        return False
    raw = bytes(value)
    if raw == _TRUE:
        return True
    if raw not in _STREAMS:
        raise RequestError(HTTPStatus.BAD_REQUEST, "The field 'stream' must be true or false.", param="stream")
    return False


def _session(fields: Fields) -> bytes:
    for name in _SESSION_FIELDS:
        raw = fields.get(name)
        if raw is not None:
            return bytes(raw)
    return b""
