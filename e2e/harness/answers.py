"""Compare what two servers gave one client: without ids, times and cache counts, and however streams were cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from duplex_connector.contract import Params

_OF_THE_REQUEST: Final = frozenset({"id", "call_id", "item_id", "created", "created_at", "signature", Params.FIELD})
_OF_THE_SERVER: Final = frozenset({"system_fingerprint"})  # vLLM's tells its version and sizes
_OF_THE_CACHE: Final = frozenset(
    {
        "prompt_tokens_details",
        "input_tokens_details",
        "input_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    }
)
_CHANCE: Final = _OF_THE_REQUEST | _OF_THE_SERVER | _OF_THE_CACHE
_GROWING: Final = frozenset({"content", "text", "delta", "reasoning", "arguments", "partial_json", "thinking"})
"""Texts that come piece by piece."""
_TOLERANCE: Final = 1e-3
"""Of log-probabilities: a prompt that is computed in other pieces rounds otherwise."""
_ABSENT: Final = "(absent)"


def without_chance(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return an answer without what differs from one time to the next: ids, times, and what a cache held."""
    if isinstance(value, list):
        return [without_chance(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: without_chance(each) for name, each in value.items() if name not in _CHANCE}


def tells_params(value: Any) -> bool:  # noqa: ANN401 - any JSON
    """Say whether engines' kv_transfer_params stand anywhere in an answer."""
    if isinstance(value, list):
        return any(tells_params(each) for each in value)
    if not isinstance(value, dict):
        return False
    return value.get(Params.FIELD) is not None or any(tells_params(each) for each in value.values())


def joined(parts: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return a stream's parts as one list that is the same wherever the stream was cut.

    Engines put as many tokens into a chunk as they have when they come to send it. Chunks become what all of them
    carry, their choices grown whole, and their usage; of events, deltas of one text that follow each other become one.
    """
    if any("choices" in part for part in parts):
        return _joined_chunks(parts)
    events: list[dict[str, Any]] = []
    for part in parts:
        event = {name: value for name, value in part.items() if name != "sequence_number"}
        if events and str(event["type"]).endswith("delta") and _place(event) == _place(events[-1]):
            events[-1] = _grown(events[-1], event)
        else:
            events.append(event)
    return events


def _joined_chunks(chunks: Sequence[Mapping[str, Any]]) -> list[Any]:
    heads: list[Any] = []
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        head = {name: value for name, value in chunk.items() if name not in {"choices", "usage"}}
        if head not in heads:
            heads.append(head)
        for choice in chunk["choices"]:
            choices[choice["index"]] = _grown(choices.get(choice["index"], {}), choice)
    return [*heads, *(choices[index] for index in sorted(choices)), *usages]


def _place(event: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(event.get(name) for name in ("type", "index", "output_index", "content_index"))


def _grown(sofar: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return `sofar` with `more` added: texts and lists grow, the rest is what was last said."""
    out = dict(sofar)
    for name, value in more.items():
        before = out.get(name)
        if value is None or before is None:
            out[name] = before if value is None else value
        elif isinstance(value, dict) and isinstance(before, dict):
            out[name] = _grown(before, value)
        elif isinstance(value, list) or name in _GROWING:
            out[name] = before + value
        else:
            out[name] = value
    return out


def difference(ours: Any, theirs: Any) -> str:  # noqa: ANN401 - any JSON
    """Return where two answers first differ and what they say there; empty where they are equal."""
    return next(_differences(ours, theirs, ""), "")


def _differences(ours: Any, theirs: Any, where: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            yield from _differences(ours.get(name, _ABSENT), theirs.get(name, _ABSENT), f"{where}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _differences(one, other, f"{where}[{index}]")
    elif isinstance(ours, float) and isinstance(theirs, float):
        if not math.isclose(ours, theirs, abs_tol=_TOLERANCE):
            yield f"{where}: {ours} is not {theirs}"
    elif ours != theirs:
        yield f"{where}: {ours!r} is not {theirs!r}"
