"""Which engines a check needs, and what a provider of engines must offer: the simulator's or real vLLM's."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from duplex_connector.contract import ConnectorKind, Role

MODEL: Final = "m"
"""The name under which every provider serves the model."""

ADAPTER: Final = "adapter-a"
"""The adapter that engines of a variant with adapters have."""


class Family(StrEnum):
    """What kind of KV the model keeps. Window models must have a window shorter than the suite's prompts."""

    FULL = "full"
    WINDOW = "window"


@dataclass(frozen=True)
class Variant:
    """A prefill, a decode and a plain engine, and what is special about them.

    `role_is_both`: kv_both on both roles, else producer and consumer. `prefill_caching`: prefix caching of the prefill
    engine. `prefill_pulls`: its bidirectional flag. `recompute`: its load failure policy, where it is not
    the builder's.
    `small_prefill`: the prefill engine has a pool of few blocks and short steps, so that requests preempt one another.
    `lossy`: the tokenizer is a byte-pair one, whose text does not always come back as the same tokens.
    `ttl_seconds`, `threshold_tokens`: only stock engines are given them.
    """

    connector: ConnectorKind
    family: Family = Family.FULL
    role_is_both: bool = True
    prefill_caching: bool = False
    prefill_pulls: bool = True
    recompute: bool | None = None
    small_prefill: bool = False
    adapters: bool = False
    lossy: bool = False
    ttl_seconds: int = 60
    threshold_tokens: int = 64

    def __str__(self) -> str:
        words = [self.connector.value.lower(), self.family.value]
        words += [word for word, on in (("per-role", not self.role_is_both), ("caching", self.prefill_caching)) if on]
        words += [word for word, on in (("flag-off", not self.prefill_pulls), ("small", self.small_prefill)) if on]
        words += [word for word, on in (("recompute", self.recompute), ("adapters", self.adapters)) if on]
        words += ["lossy"] if self.lossy else []
        words += [f"ttl{self.ttl_seconds}"] if self.ttl_seconds != Variant.ttl_seconds else []
        return "-".join(words)


class Running(Protocol):
    """A variant's engines as they run."""

    @property
    def prefill(self) -> str:
        """Return the prefill engine's URL."""

    @property
    def decode(self) -> str:
        """Return the decode engine's URL."""

    @property
    def plain(self) -> str:
        """Return the plain engine's URL."""

    @property
    def facts(self) -> Facts:
        """Return what checks must know about these engines."""

    def kill(self, role: Role) -> None:
        """End one engine without warning."""

    def close(self) -> None:
        """End them all."""


@dataclass(frozen=True)
class Facts:
    """`tokens`: a range of ids that are plain words. `first_answer_seconds`: how long a request may take at most.

    `hang_seconds`: how long without an answer counts as a hang. `marks`: whether wrong KV is marked in the answer, so
    that a check need not hope that it changes the greedy tokens.
    """

    block_size: int
    tokens: range
    marks: bool
    answer_seconds: float
    hang_seconds: float
    streams_params: bool = True
    small_prefill_blocks: int = 0
    version: str = field(default="")


class Provider(Protocol):
    """Starts engines."""

    name: str

    def start(self, variant: Variant) -> Running:
        """Return the variant's engines, ready."""
