"""What the demo runs for each engine: which example, how long a conversation, and how long to wait."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.installation import ROOT


@dataclass(frozen=True)
class EnginePlan:
    """One engine's demo. The simulator counts about four tokens for three words, the tiny model of vLLM one for one."""

    engine: str
    example: Path
    image: str
    turns: int
    first_words: int
    next_words: int
    max_tokens: int
    ready_seconds: float
    cached_turns: int


SIMULATOR = EnginePlan(
    engine="simulator",
    example=ROOT / "examples/quickstart.yaml",
    image="simulator",
    turns=8,
    first_words=1500,
    next_words=2200,
    max_tokens=60,
    ready_seconds=180,
    cached_turns=3,
)
VLLM = EnginePlan(
    engine="vllm",
    example=ROOT / "examples/quickstart-vllm.yaml",
    image="engine-cpu",
    turns=5,
    first_words=2600,
    next_words=220,
    max_tokens=40,
    ready_seconds=900,
    cached_turns=3,
)
PLANS = {plan.engine: plan for plan in (SIMULATOR, VLLM)}
