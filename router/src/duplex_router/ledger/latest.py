"""Values by key, of which the latest are kept: bounded, at the price of a plain dict."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Latest(Generic[K, V]):
    """At least the `limit` values that were set last, and at most twice as many.

    They come in two generations: where the newer one is full, the older one goes and it takes its place.
    """

    __slots__ = ("_limit", "_newer", "_older")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._newer: dict[K, V] = {}
        self._older: dict[K, V] = {}

    def set(self, key: K, value: V) -> None:
        """Set a value, anew where there is one."""
        newer = self._newer
        if len(newer) >= self._limit and key not in newer:
            self._older = newer
            newer = self._newer = {}
        newer[key] = value

    def get(self, key: K) -> V | None:
        """Return a key's value; None where it is not, or no longer, known."""
        found = self._newer.get(key)
        return found if found is not None else self._older.get(key)
