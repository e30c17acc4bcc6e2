"""What a probe found of chat templates: how many tokens at a prompt's end render differently once more follows.

Only stock engines need it, since nothing proves their tokens. A template may render by whatever a request says beside
its messages, so what was found counts for requests that say the same; what no probe can say counts as unstable.
"""

from __future__ import annotations

from typing import Final

import msgspec

from duplex_router.ledger.canonical import canonical_json
from duplex_router.ledger.content import Content
from duplex_router.ledger.history import History
from duplex_router.ledger.reading import NEUTRAL_FIELDS
from duplex_router.wire.fields import is_null
from duplex_router.wire.inference import Endpoint, Inference

PROBED_FIELDS: Final = frozenset({"chat_template", "chat_template_kwargs"})
"""Fields that /tokenize renders by as the inference endpoints do (vLLM 0.33.0)."""

INERT_FIELDS: Final = frozenset(
    {
        "model",
        "cache_salt",
        "tools",
        "tool_choice",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    }
)
"""Fields that no template renders, or that the probe has by itself; all of them must be equal for a match anyway."""

MAX_ARGUMENTS: Final = 32
"""How many combinations of template arguments are probed for a revision: clients choose them."""

NO_ARGUMENTS: Final = b"{}"

MARGIN_TOKENS: Final = 4
"""Taken off a prompt's end beyond what the probe saw: the last token may join with a reply that begins in another way,
and a word of the user's may switch an empty thought on (Qwen3's has four tokens)."""


def arguments_of(request: Inference) -> bytes | None:
    """Return what a template may render by, as canonical JSON; None where that cannot be probed."""
    found: dict[str, object] = {}
    for name in request.fields.keys() - NEUTRAL_FIELDS - INERT_FIELDS:
        raw = request.fields[name]
        if is_null(raw):
            continue
        if name not in PROBED_FIELDS:
            return None
        found[name] = msgspec.json.decode(raw)
    return canonical_json(found)


class Templates:
    """What is known by revision, by arguments, and for plain conversations and those with tools apart."""

    def __init__(self) -> None:
        self._slack: dict[tuple[str, bytes, bool], int | None] = {}
        self._wanted: dict[str, dict[bytes, None]] = {}

    def learn(self, revision: str, *, tools: bool, slack: int | None, arguments: bytes = NO_ARGUMENTS) -> None:
        """Take a probe's result; None: not prefix-stable."""
        self._slack[revision, arguments, tools] = slack

    def probed(self, revision: str) -> bool:
        """Tell whether a revision has been probed for requests without arguments."""
        return (revision, NO_ARGUMENTS, True) in self._slack

    def wanted(self, revision: str) -> list[bytes]:
        """Return the arguments that are still to be probed for a revision."""
        asked = [NO_ARGUMENTS, *self._wanted.get(revision, ())]
        return [arguments for arguments in asked if (revision, arguments, True) not in self._slack]

    def slack(self, revision: str, request: Inference, history: History) -> int | None:
        """Return the slack for a request, None where it is unknown or too much; a plain prompt has no template."""
        if request.endpoint is Endpoint.COMPLETIONS:
            return 0
        arguments = arguments_of(request)
        if arguments is None or history.content is Content.UNPROBED:
            return None
        key = (revision, arguments, "tools" in request.fields or history.content is not Content.PLAIN)
        if key not in self._slack:
            wanted = self._wanted.setdefault(revision, {})
            if len(wanted) < MAX_ARGUMENTS:
                wanted[arguments] = None
        found = self._slack.get(key)
        if found is None:
            return None
        # What a plain turn may pull can come from one with tools, if those are stable: none of theirs is known else.
        return max(found, self._slack.get((revision, arguments, True)) or 0) + MARGIN_TOKENS
