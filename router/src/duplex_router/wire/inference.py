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


class Endpoint(StrEnum):
    """The inference endpoints that run as two legs."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


LEG_OWN_FIELDS = frozenset(
    {
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "n",
        "best_of",
        "logprobs",
        "top_logprobs",
        "stop",
    }
)
"""Fields that shape the answer but not the KV: the decode leg has the client's, the prefill leg has its own."""

PREFILL_FIELDS = b'"max_tokens":1,"stream":false'

_UNIQUE_FIELDS = LEG_OWN_FIELDS | {"model", "messages", "prompt", Params.FIELD, *SESSION_FIELDS}
_TRUE = b"true"
_FALSE = b"false"
_ONE = b"1"


@dataclass(slots=True)
class Inference:
    """One inference request.

    `fields`: what both legs share, as it came, and `common` the same as it stands between braces; `own`: the client's
    values of what each leg has for itself. `whole`: why the turn cannot be split into two legs, empty where it can:
    several sequences would read one hand-off, and prompt log-probabilities need the whole prompt computed.
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

    def prefill_body(self, params: bytes) -> list[bytes]:
        """Return the prefill leg's body: one token, not streamed, with `params` as its kv_transfer_params."""
        tail = b',%b,"%b":%b}' % (PREFILL_FIELDS, Params.FIELD.encode(), params)
        return [b"{", self.common, tail]

    def decode_body(self, params: bytes | None) -> list[bytes]:
        """Return the decode leg's body: the client's own values, with `params` as its kv_transfer_params."""
        pieces = [b"{", self.common]
        if self.own:
            pieces += [b",", join_fields(self.own)]
        pieces.append(b',"%b":%b}' % (Params.FIELD.encode(), params) if params is not None else b"}")
        return pieces


def parse_inference(endpoint: Endpoint, body: Piece) -> Inference:
    """Split a request body. Raises RequestError for what no engine should see."""
    try:
        fields = split_object(body)
    except WireError as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"The body must be one JSON object: {error}.") from error
    twice = repeated_key(body, fields)
    if twice in _UNIQUE_FIELDS:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"Send the field {twice!r} once.", param=twice)
    fields.pop(Params.FIELD, None)
    _refuse_smuggled_params(fields)
    own = {name: fields.pop(name) for name in LEG_OWN_FIELDS & fields.keys()}
    return Inference(
        endpoint=endpoint,
        fields=fields,
        own=own,
        size=len(body),
        model=_model(fields),
        stream=_stream(own),
        session=_session(fields),
        whole=_why_whole(endpoint, fields, own),
        # vLLM takes a null model for its default one: keeps the commas right where the client shares no field.
        common=join_fields(fields) or b'"model":null',
    )


def _refuse_smuggled_params(fields: Fields) -> None:
    # vLLM merges vllm_xargs into the same dict of extra arguments (chat_completion/protocol.py, 0.33.0).
    extra = fields.get("vllm_xargs")
    if extra is not None and Params.FIELD.encode() in bytes(extra):
        raise RequestError(
            HTTPStatus.BAD_REQUEST, f"vllm_xargs must not hold {Params.FIELD}: the router sets it.", param="vllm_xargs"
        )


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


def _asks(fields: Fields, name: str, *, unless: tuple[bytes, ...] = ()) -> bool:
    raw = fields.get(name)
    return raw is not None and not is_null(raw) and bytes(raw) not in unless


def _why_whole(endpoint: Endpoint, fields: Fields, own: Fields) -> str:
    if _asks(own, "n", unless=(_ONE,)) or _asks(own, "best_of", unless=(_ONE,)):
        return "several-sequences"
    if _asks(fields, "use_beam_search", unless=(_FALSE,)):
        return "several-sequences"
    if _asks(fields, "prompt_logprobs") or _asks(fields, "echo", unless=(_FALSE,)):
        return "prompt-logprobs"
    if endpoint is Endpoint.COMPLETIONS and _has_several_prompts(bytes(fields.get("prompt", b""))[:64]):
        return "several-prompts"
    return ""


def _has_several_prompts(start: bytes) -> bool:
    # One prompt is a string or a list of numbers; a list of strings or of lists holds several.
    return start[:1] == b"[" and start[1:].lstrip()[:1] in (b'"', b"[")
