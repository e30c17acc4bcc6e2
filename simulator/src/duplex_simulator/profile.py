"""How long an engine takes: prefill, decode and transfer time as functions of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Profile:
    """Seconds as functions of tokens, and the bytes of KV that one token takes.

    Prefill of `new` tokens after `context` held ones takes `launch + per_new * new + per_context * context`; a decode
    step takes `step + per_step_context * context`; `frontend` is templating, tokenising and HTTP per prompt token.
    Transfer is read off `transfer`, points of (tokens, seconds) joined by straight lines, the last line going on.
    """

    name: str
    launch: float = 0.0
    per_new: float = 0.0
    per_context: float = 0.0
    step: float = 0.0
    per_step_context: float = 0.0
    frontend: float = 0.0
    transfer: tuple[tuple[int, float], ...] = ((0, 0.0), (1, 0.0))
    kv_bytes_per_token: int = 8

    def prefill_seconds(self, new: int, context: int) -> float:
        """Return the compute time of `new` tokens that attend to `context` held ones; 0 for no tokens."""
        return self.launch + self.per_new * new + self.per_context * context if new else 0.0

    def decode_seconds(self, context: int) -> float:
        """Return the time of one output token."""
        return self.step + self.per_step_context * context

    def transfer_seconds(self, tokens: int) -> float:
        """Return the time that KV of `tokens` tokens takes from one engine to another."""
        return _interpolate(self.transfer, tokens)

    def frontend_seconds(self, tokens: int) -> float:
        """Return the time between a request's arrival and its place in the queue."""
        return self.frontend * tokens


def _interpolate(points: Sequence[tuple[int, float]], at: int) -> float:
    index = next((i for i, (tokens, _) in enumerate(points[1:], 1) if at <= tokens), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return y0 + (y1 - y0) * (at - x0) / (x1 - x0)


INSTANT: Final = Profile("instant")

QWEN3_32B_P5EN: Final = Profile(
    "qwen3-32b-p5en",
    launch=0.086,
    per_new=27e-6,
    per_context=8.45e-6,
    step=0.010,
    per_step_context=0.05e-6,
    frontend=0.7e-6,
    transfer=((0, 0.0), (2000, 0.030), (24_000, 0.130)),
    kv_bytes_per_token=262_144,
)

PROFILES: Final = {profile.name: profile for profile in (INSTANT, QWEN3_32B_P5EN)}
