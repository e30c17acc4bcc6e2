"""Which models the engines serve, as they say themselves: the base model, its other names, and adapters."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

MAX_MODELS = 1024


class Card(msgspec.Struct, omit_defaults=True):
    """An entry of `/v1/models`, as far as clients may see it: not the path that an engine loads it from."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "duplex"
    parent: str | None = None
    max_model_len: int | None = None


class _Listing(msgspec.Struct):
    data: list[Card]


_decode = msgspec.json.Decoder(_Listing).decode


def read_cards(body: bytes) -> list[Card]:
    """Read an engine's answer. Raises msgspec.DecodeError."""
    return _decode(body).data


class Models:
    """All models of the fleet. What no engine has told yet is not there, but for the base model."""

    def __init__(self) -> None:
        self._cards: dict[str, Card] = {}

    def take(self, cards: Iterable[Card]) -> None:
        """Replace what is known by what the engines say now."""
        found = {card.id: card for _, card in zip(range(MAX_MODELS), cards, strict=False)}
        self._cards = {
            name: Card(name, created=card.created, parent=card.parent, max_model_len=card.max_model_len)
            for name, card in found.items()
        }

    def serves(self, name: str, base: str) -> bool:
        """Tell whether a request may name this model; `base` is the fleet's."""
        return name == base or name in self._cards

    def listed(self, base: str) -> list[dict[str, object]]:
        """Return the entries for clients, the base model first."""
        cards = [self._cards.get(base, Card(base)), *(card for name, card in self._cards.items() if name != base)]
        return [
            {"id": card.id, "object": "model", "created": card.created, "owned_by": "duplex"}
            | ({"parent": card.parent} if card.parent is not None else {})
            | ({"max_model_len": card.max_model_len} if card.max_model_len is not None else {})
            for card in cards
        ]
