"""Which paths there are, who answers them, and what becomes of those that are not here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from duplex_connector.contract import Role
from duplex_router.wire.api_errors import RESPONSES_PATH
from duplex_router.wire.inference import Endpoint

INFERENCE: Final = {endpoint.encode(): endpoint for endpoint in Endpoint}
HEALTH: Final = frozenset({b"/health", b"/ping"})
MODELS: Final = b"/v1/models"

GET: Final = (b"GET", b"HEAD", b"OPTIONS")
POST: Final = (b"POST", b"OPTIONS")


@dataclass(frozen=True, slots=True)
class Passed:
    """A path that one engine answers as it is: of which role, where there is one, and within how many seconds."""

    role: Role = Role.PREFILL
    seconds: float = 30.0
    methods: tuple[bytes, ...] = POST


_WORK: Final = Passed(seconds=120.0)
_SPEECH: Final = Passed(Role.DECODE, seconds=300.0)

# None of these takes kv_transfer_params (vLLM 0.33.0): what does is a turn above, or is not passed.
PASSED: Final = {
    b"/version": Passed(methods=GET),
    b"/tokenize": Passed(),
    b"/detokenize": Passed(),
    b"/v1/messages/count_tokens": Passed(),
    b"/v1/embeddings": _WORK,
    b"/v2/embed": _WORK,
    b"/pooling": _WORK,
    b"/classify": _WORK,
    b"/score": _WORK,
    b"/v1/score": _WORK,
    b"/rerank": _WORK,
    b"/v1/rerank": _WORK,
    b"/v2/rerank": _WORK,
    b"/v1/audio/transcriptions": _SPEECH,
    b"/v1/audio/translations": _SPEECH,
}


def allowed(path: bytes) -> tuple[bytes, ...]:
    """Return the methods that a path takes; none where there is no such path."""
    if path in INFERENCE:
        return POST
    passed = PASSED.get(path)
    if passed is not None:
        return passed.methods
    if path in HEALTH or path == MODELS or path.startswith(MODELS + b"/"):
        return GET
    return (b"OPTIONS",) if path == b"*" else ()  # the server as a whole (RFC 9110, 9.3.7)


def why_absent(path: bytes) -> str:
    """Say why there is no such path."""
    if path.startswith(RESPONSES_PATH + b"/"):
        return "Responses are not stored here: engines behind this router keep none."
    return f"There is no {path.decode('latin-1')} here."
