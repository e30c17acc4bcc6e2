"""Which marks of a history have keys in the store, so that the longest history costs a bounded number of them."""

from __future__ import annotations

NEAR_MARKS = 64
"""The last marks of a history are all looked for, and half of them indexed."""

FAR_STEP = 16
FAR_MARKS = 64
"""Of those before, each sixteenth, so that a long history costs a bounded number of keys."""


def chosen_depths(length: int, near: int) -> list[int]:
    """Return, deepest first, the depths of a history of `length` marks that have keys in the store."""
    split = max(length - near, 0)
    far = range(split // FAR_STEP * FAR_STEP, 0, -FAR_STEP)
    return [*range(length, split, -1), *far[:FAR_MARKS]]
