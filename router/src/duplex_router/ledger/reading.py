"""What of a request body makes its history, endpoint by endpoint, and what else decides the rendered prompt."""

from __future__ import annotations

import array
from http import HTTPStatus

import msgspec
import xxhash
from msgspec import Raw

from duplex_router.wire.errors import RequestError
from duplex_router.wire.fields import Fields
from duplex_router.wire.inference import Endpoint, Inference

from .history import ID_BYTES, TEXT_STRIDE, TOKEN_STRIDE, Conversation, History, PlainPrompt, canonical, utf8
from .items import AnthropicMessages, ResponseItems, system_without_stamp, without_cache_control

NEUTRAL_FIELDS = frozenset(
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


_CONTENT = {
    Endpoint.CHAT: "messages",
    Endpoint.COMPLETIONS: "prompt",
    Endpoint.RESPONSES: "input",
    Endpoint.MESSAGES: "messages",
}
_CONVERSATIONS = {
    Endpoint.CHAT: Conversation,
    Endpoint.RESPONSES: ResponseItems,
    Endpoint.MESSAGES: AnthropicMessages,
}
_decode_messages = msgspec.json.Decoder(list[Fields]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_ids = msgspec.json.Decoder(list[int]).decode


def read_history(request: Inference, tenant: bytes) -> History | None:
    """Return a request's history; None where its content is of no kind that can be followed.

    Raises RequestError where the field that should hold the content is missing or malformed, so that no engine need
    be asked.
    """
    name = _CONTENT[request.endpoint]
    raw = request.fields.get(name)
    if raw is None:
        if request.endpoint is Endpoint.COMPLETIONS and "prompt_embeds" in request.fields:
            return None
        raise RequestError(HTTPStatus.BAD_REQUEST, f"The field {name!r} is missing.", param=name)
    seed = _seed(request, tenant)
    try:
        return _read(request.endpoint, raw, seed)
    except (msgspec.DecodeError, RecursionError, OverflowError) as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"The field {name!r} is malformed: {error}.", param=name) from error


def _read(endpoint: Endpoint, raw: Raw, seed: bytes) -> History | None:
    if endpoint is Endpoint.COMPLETIONS:
        return _prompt(raw, seed)
    if endpoint is Endpoint.RESPONSES and bytes(memoryview(raw)[:1]) == b'"':
        messages = [{"role": Raw(b'"user"'), "content": raw}]  # a text is one message of the user's
    else:
        messages = _decode_messages(raw)
    if not messages:
        raise msgspec.DecodeError("it is empty")
    return _CONVERSATIONS[endpoint](messages, seed)


def _seed(request: Inference, tenant: bytes) -> bytes:
    """Return the digest that the chain starts from: all that decides the prompt but the history itself."""
    state = xxhash.xxh3_128(tenant)
    state.update(b"\0" + request.endpoint.encode())
    anthropic = request.endpoint is Endpoint.MESSAGES
    for name in sorted(request.fields.keys() - NEUTRAL_FIELDS):
        value = msgspec.json.decode(request.fields[name])
        if anthropic:
            value = system_without_stamp(value) if name == "system" else without_cache_control(value)
        state.update(b"\0" + name.encode() + b"\0" + canonical(value))
    return state.digest()


def _prompt(raw: Raw, seed: bytes) -> PlainPrompt | None:
    start = bytes(memoryview(raw)[:64])
    if start[:1] == b'"':
        return PlainPrompt(utf8(_decode_text(raw)), seed, stride=TEXT_STRIDE, unit=1)
    if start[:1] == b"[" and start[1:].lstrip()[:1] not in (b"[", b'"'):
        ids = array.array("I", _decode_ids(raw))
        return PlainPrompt(ids.tobytes(), seed, stride=TOKEN_STRIDE, unit=ID_BYTES)
    return None
