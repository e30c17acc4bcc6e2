"""The JSON of engines and clients as far as the router reads it: what is not named here is skipped, not decoded.

Apart from what uses them, so that the rest of the hot path can be compiled: msgspec makes its types while it runs.
So they have no methods, which would be interpreted.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from duplex_connector.contract import Duplex, Params

_NULL = b"null"
_ABSENT = Raw(b"")


class Function(msgspec.Struct, gc=False):
    """A piece of a call."""

    name: str | None = None
    arguments: str | None = None


class CallPart(msgspec.Struct, gc=False):
    """A tool call, or the next piece of one."""

    index: int = 0
    function: Function | None = None


class Message(msgspec.Struct, gc=False):
    """A streamed delta or a whole message: of the same shape, as far as it is read here."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallPart] | None = None


class Choice(msgspec.Struct, gc=False):
    """One of an answer's choices, of chats or of completions."""

    index: int = 0
    delta: Message | None = None
    message: Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts as the engine reports them."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class Event(msgspec.Struct, gc=False):
    """One streamed event, or a whole answer, as far as the router reads it."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Raw = Raw(_NULL)
    kv_transfer_params: Raw = Raw(_NULL)


class OwnParams(msgspec.Struct, gc=False):
    """An engine's `duplex` object: what it made of the handle or hand-off it was given, in tokens of this prompt.

    `ttl`, `threshold`, `keep` are the router's to say: no engine has them.
    """

    outcome: str = ""
    reason: str = ""
    proved: int = 0
    pulled: int = 0
    local: int = 0
    computed: int | None = None
    ttl: Raw = msgspec.field(default=_ABSENT, name=Duplex.TTL)
    threshold: Raw = msgspec.field(default=_ABSENT, name=Duplex.THRESHOLD)
    keep: Raw = msgspec.field(default=_ABSENT, name=Duplex.KEEP)


class EngineParams(msgspec.Struct, gc=False):
    """What a prefill engine says in its kv_transfer_params beside the hand-off."""

    cached: int | None = msgspec.field(default=None, name=Params.CACHED_TOKENS)
    duplex: Raw = Raw(_NULL)


class PrefillUsage(msgspec.Struct, gc=False):
    """OpenAI's counts, or Anthropic's, whose input leaves out what came from a cache."""

    prompt_tokens: int = 0
    input_tokens: int = 0
    cache_read_input_tokens: int | None = 0
    cache_creation_input_tokens: int | None = 0


class PrefillChoice(msgspec.Struct, gc=False):
    """One of a prefill answer's choices."""

    finish_reason: str | None = None


class PrefillBody(msgspec.Struct, gc=False):
    """An answer of any of the endpoints: with choices, a response with its status, or a message by its type."""

    choices: list[PrefillChoice] = []
    status: str = ""
    type: str = ""
    usage: PrefillUsage | None = None
    prompt_token_ids: Raw = Raw(_NULL)
    kv_transfer_params: Raw = Raw(_NULL)


class HandleKeys(msgspec.Struct, gc=False):
    """What every handle must have, and what is read of it."""

    request_id: str = msgspec.field(name=Params.REQUEST_ID)
    engine_id: str = msgspec.field(name=Params.ENGINE_ID)
    block_ids: Raw = msgspec.field(name=Params.BLOCK_IDS)
    host: str = msgspec.field(name=Params.HOST)
    port: int = msgspec.field(name=Params.PORT)
    tokens: int = msgspec.field(name=Params.NUM_TOKENS)
    expiry: float | None = msgspec.field(default=None, name=Params.EXPIRY_TIME)
    duplex: Raw = Raw(_NULL)


class Typed(msgspec.Struct):
    """Anything with a type."""

    type: str | None = None


class MessageBlock(msgspec.Struct):
    """A block of a message's content."""

    type: str | None = None
    text: str | None = None
    name: str | None = None
    input: Raw = Raw(_NULL)


class MessageUsage(msgspec.Struct):
    """`input_tokens` leaves out what came from a cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int | None = 0
    cache_creation_input_tokens: int | None = 0


class MessageAnswer(msgspec.Struct):
    """A streamed event, or a whole message: they share no field but the type and the usage."""

    type: str = ""
    content: list[MessageBlock] = []
    usage: MessageUsage | None = None
    kv_transfer_params: Raw = Raw(_NULL)


class ResponsePart(msgspec.Struct):
    """A part of an output message."""

    text: str | None = None


class ResponseItem(msgspec.Struct):
    """An output item: a message with its parts, a function call, or what is not read here."""

    type: str = ""
    content: list[ResponsePart] | None = None
    name: str | None = None
    arguments: str | None = None


class ResponseUsage(msgspec.Struct):
    """Token counts of a response."""

    input_tokens: int = 0
    output_tokens: int = 0


class Response(msgspec.Struct):
    """A response, whole."""

    status: str = ""
    output: list[ResponseItem] = []
    usage: ResponseUsage | None = None
    error: Raw = Raw(_NULL)
    kv_transfer_params: Raw = Raw(_NULL)


class ResponseEvent(msgspec.Struct):
    """A streamed event; a whole answer has no type."""

    type: str = ""
    sequence_number: int = -1
    response: Raw = Raw(_NULL)
    kv_transfer_params: Raw = Raw(_NULL)


decode_event = msgspec.json.Decoder(Event).decode
decode_prefill = msgspec.json.Decoder(PrefillBody).decode
decode_engine_params = msgspec.json.Decoder(EngineParams).decode
decode_own = msgspec.json.Decoder(OwnParams).decode
decode_handle = msgspec.json.Decoder(HandleKeys).decode
decode_types = msgspec.json.Decoder(list[Typed]).decode
decode_typed = msgspec.json.Decoder(Typed).decode
decode_message = msgspec.json.Decoder(MessageAnswer).decode
decode_response_event = msgspec.json.Decoder(ResponseEvent).decode
decode_response = msgspec.json.Decoder(Response).decode
