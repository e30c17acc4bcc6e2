"""What is read of an engine's answers in one pass, as plans for `scanner.scan`, and where in its list each value is.

Named after the types of `shapes`, which are the reference: what one of them would refuse, its plan does not tell.
"""

from __future__ import annotations

from typing import Final

from duplex_connector.contract import Duplex, Params

from .scanner import plan

_OWN = {
    "outcome": "plain",
    "reason": "plain",
    "proved": "integer",
    "pulled": "integer",
    "local": "integer",
    "computed": "integer?",
    Duplex.TTL: "raw",
    Duplex.THRESHOLD: "raw",
    Duplex.KEEP: "raw",
}

OWN_START: Final = 0
OWN_STOP: Final = 1
OWN_OUTCOME: Final = 2
OWN_REASON: Final = 3
OWN_PROVED: Final = 4
OWN_PULLED: Final = 5
OWN_LOCAL: Final = 6
OWN_COMPUTED: Final = 7
OWN_TTL: Final = 8
OWN_THRESHOLD: Final = 9
OWN_KEEP: Final = 10
"""Of a `duplex` object; counted from where it begins in its plan."""

_HANDLE = {
    Params.REQUEST_ID: "plain",
    Params.ENGINE_ID: "plain",
    Params.BLOCK_IDS: "listed",
    Params.HOST: "plain",
    Params.PORT: "integer",
    Params.NUM_TOKENS: "integer",
    Params.EXPIRY_TIME: "raw?",
    Params.DUPLEX: (_OWN,),
}

HANDLE_START: Final = 0
HANDLE_STOP: Final = 1
HANDLE_REQUEST_ID: Final = 2
HANDLE_ENGINE_ID: Final = 3
HANDLE_BLOCK_IDS: Final = 4
HANDLE_HOST: Final = 5
HANDLE_PORT: Final = 6
HANDLE_TOKENS: Final = 7
HANDLE_EXPIRY: Final = 8
HANDLE_OWN: Final = 9
"""Of a decode engine's params; counted from where they begin in their plan."""

EVENT: Final = plan(
    {
        "choices": [
            {
                "delta": {
                    "content": "text?",
                    "reasoning": "said?",
                    "reasoning_content": "said?",
                    "tool_calls": "listed?",
                },
                "message": "raw?",
                "text": "text?",
                "finish_reason": "plain?",
            }
        ],
        "usage": {"prompt_tokens": "integer", "completion_tokens": "integer?"},
        "error": "raw?",
        Params.FIELD: (_HANDLE,),
    }
)

EVENT_CHOICES: Final = 1
EVENT_DELTA: Final = 3
EVENT_CONTENT: Final = 4
EVENT_CONTENT_STOP: Final = 5
EVENT_REASONING: Final = 6
EVENT_REASONING_CONTENT: Final = 7
EVENT_TOOL_CALLS: Final = 8
EVENT_MESSAGE: Final = 9
EVENT_TEXT: Final = 10
EVENT_TEXT_STOP: Final = 11
EVENT_FINISH_REASON: Final = 12
EVENT_USAGE: Final = 13
EVENT_PROMPT_TOKENS: Final = 14
EVENT_COMPLETION_TOKENS: Final = 15
EVENT_ERROR: Final = 16
EVENT_HANDLE: Final = 17

PREFILL: Final = plan(
    {
        "choices": [{"finish_reason": "plain?"}],
        "status": "plain",
        "type": "plain",
        "usage": {
            "prompt_tokens": "integer",
            "input_tokens": "integer",
            "cache_read_input_tokens": "integer?",
            "cache_creation_input_tokens": "integer?",
        },
        "prompt_token_ids": "raw?",
        Params.FIELD: ({Params.CACHED_TOKENS: "integer?", Params.DUPLEX: (_OWN,)},),
    }
)

PREFILL_CHOICES: Final = 1
PREFILL_FINISH_REASON: Final = 3
PREFILL_STATUS: Final = 4
PREFILL_TYPE: Final = 5
PREFILL_USAGE: Final = 6
PREFILL_PROMPT_TOKENS: Final = 7
PREFILL_INPUT_TOKENS: Final = 8
PREFILL_CACHE_READ: Final = 9
PREFILL_CACHE_CREATION: Final = 10
PREFILL_TOKEN_IDS: Final = 11
PREFILL_PARAMS: Final = 12
PREFILL_PARAMS_STOP: Final = 13
PREFILL_CACHED: Final = 14
PREFILL_OWN: Final = 15
