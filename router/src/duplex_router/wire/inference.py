"""A client's inference request, split once into what both legs share and what each leg has of its own.

The client's `kv_transfer_params` never pass: they would let it name others' memory (vLLM, docs/usage/security.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

import msgspec
from msgspec import Raw

from duplex_connector.contract import SESSION_FIELDS, Params

from .errors import RequestError, WireError
from .fields import Fields, Piece, is_null, join_fields, repeated_key, split_object
from .whole import why_whole


class Endpoint(StrEnum):
    """The inference endpoints that run as two legs."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True)
class _Legs:
    """What each leg of an endpoint has of its own.

    `own`: fields that shape the answer but not the KV: the decode leg has the client's, the prefill leg `prefill`.
    `decode`: what the decode leg has whatever the client says.
    """

    own: frozenset[str]
    prefill: bytes
    decode: bytes = b""


_COMMON_OWN = frozenset({"stream", "stream_options", "max_tokens"})
_COMPLETION = _Legs(
    own=_COMMON_OWN
    | {
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
    },
    prefill=b'"max_tokens":1,"stream":false',
)
_LEGS = {
    Endpoint.CHAT: _COMPLETION,
    Endpoint.COMPLETIONS: _COMPLETION,
    # A stored response lives in the memory of the one engine that made it and would never be found again.
    Endpoint.RESPONSES: _Legs(
        own=frozenset({"stream", "stream_options", "max_output_tokens", "top_logprobs", "include", "stop", "store"}),
        prefill=b'"max_output_tokens":1,"stream":false,"store":false',
        decode=b'"store":false',
    ),
    Endpoint.MESSAGES: _Legs(own=_COMMON_OWN | {"stop_sequences"}, prefill=b'"max_tokens":1,"stream":false'),
}

_FOREIGN_FIELDS = (Params.FIELD, Params.ENCODER_FIELD)
"""What names an engine's memory: the router's to say, never a client's."""

_STATE_FIELDS = ("previous_response_id", "background", "conversation")
"""What would make an engine remember something for a later request, which may come to another one."""

_UNIQUE_FIELDS = {
    endpoint: legs.own | {"model", "messages", "prompt", "input", *_STATE_FIELDS, *_FOREIGN_FIELDS, *SESSION_FIELDS}
    for endpoint, legs in _LEGS.items()
}
_TRUE = b"true"
_FALSE = b"false"


@dataclass(slots=True)
class Inference:
    """One inference request.

    `fields`: what both legs share, as it came, and `common` the same as it stands between braces; `own`: the client's
    values of what each leg has for itself. `whole`: why the turn cannot be split into two legs, empty where it can.
    """

    endpoint: Endpoint
    fields: Fields
    own: Fields
    size: int
    model: str | None
    stream: bool
    session: bytes
    whole: str
    common: bytes

    @property
    def tells_handle(self) -> bool:
        """Whether the answer carries the handle. vLLM 0.33 streams Anthropic's events without it."""
        return not (self.stream and self.endpoint is Endpoint.MESSAGES)

    @property
    def takes_token_ids(self) -> bool:
        """Whether decode can be given prefill's token ids, sparing it template and tokenizer (chat, vLLM >= 0.32)."""
        return self.endpoint is Endpoint.CHAT

    def prefill_body(self, params: bytes, *, token_ids: bool = False) -> list[Piece]:
        """Return the prefill leg's body: one token, not streamed, with `params` as its kv_transfer_params.

        `token_ids`: the answer shall name the prompt's.
        """
        own = _LEGS[self.endpoint].prefill + (b',"return_token_ids":true' if token_ids else b"")
        return [b"{", self.common, b',%b,"%b":%b}' % (own, Params.FIELD.encode(), params)]

    def decode_body(self, params: bytes | None) -> list[Piece]:
        """Return the decode leg's body: the client's own values, with `params` as its kv_transfer_params."""
        pieces: list[Piece] = [b"{", self.common]
        if self.own:
            pieces += [b",", join_fields(self.own)]
        decode = _LEGS[self.endpoint].decode
        if decode:
            pieces += [b",", decode]
        pieces.append(b',"%b":%b}' % (Params.FIELD.encode(), params) if params is not None else b"}")
        return pieces


def parse_inference(endpoint: Endpoint, body: Piece) -> Inference:
    """Split a request body. Raises RequestError for what no engine should see."""
    try:
        fields = split_object(body)
    except WireError as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"The body must be one JSON object: {error}.") from error
    twice = repeated_key(body, fields)
    if twice in _UNIQUE_FIELDS[endpoint]:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"Send the field {twice!r} once.", param=twice)
    for name in _FOREIGN_FIELDS:
        fields.pop(name, None)
    _refuse_smuggled_params(fields)
    if endpoint is Endpoint.RESPONSES:
        _refuse_state(fields)
    legs = _LEGS[endpoint]
    own = {name: fields.pop(name) for name in [each for each in fields if each in legs.own]}
    whole = why_whole(fields, own, is_messages=endpoint is Endpoint.MESSAGES)
    stream = _stream(own)
    if legs.decode:
        own.pop("store", None)
    return Inference(
        endpoint=endpoint,
        fields=fields,
        own=own,
        size=len(body),
        model=_model(fields),
        stream=stream,
        session=_session(fields),
        whole=whole,
        # vLLM takes a null model for its default one: keeps the commas right where the client shares no field.
        common=join_fields(fields) or b'"model":null',
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


def _model(fields: Fields) -> str | None:
    raw = fields.get("model")
    if raw is None or is_null(raw):
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.ValidationError as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, "The field 'model' must be a string.", param="model") from error


def _stream(own: Fields) -> bool:
    raw = bytes(own.get("stream", Raw(_FALSE)))
    if raw not in (_TRUE, _FALSE, b"null"):
        raise RequestError(HTTPStatus.BAD_REQUEST, "The field 'stream' must be true or false.", param="stream")
    return raw == _TRUE


def _session(fields: Fields) -> bytes:
    return next((bytes(fields[name]) for name in SESSION_FIELDS if name in fields), b"")
