"""The content of a request as a chain of marks, so that a later request that shares a beginning is recognised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from xxhash import xxh3_128_digest as _digest

from duplex_router.wire.reply import Reply

from .chain import STRIDE_BYTES, Chain, stride_at
from .content import Content

ID_BYTES: Final = 4


class History(ABC):
    """One request's content. `marks`: the chain's; `whole` and `length` name all of it.

    `shape`: digest of everything that may decide the prompt besides its content, to prefer among equal matches.
    `content`: what it is made of; only asked where nothing is proved.
    """

    __slots__ = ("content", "length", "marks", "shape", "whole")

    def __init__(self, marks: list[bytes], whole: bytes, length: int, shape: bytes, content: Content) -> None:
        self.marks = marks
        self.whole = whole
        self.length = length
        self.shape = shape
        self.content = content

    @abstractmethod
    def begins_with(self, whole: bytes, length: int) -> bool:
        """Tell whether the first `length` of this history are all of the history that `whole` and `length` name."""

    @abstractmethod
    def continued(self, reply: Reply) -> list[bytes]:
        """Return the marks of this history with the engine's reply after it, as a client would send it back."""

    @abstractmethod
    def parts(self, depth: int) -> int:
        """Return how many whole parts (messages, or strides of a prompt) the first `depth` marks cover."""

    @abstractmethod
    def tokens_at(self, depth: int) -> int | None:
        """Return how many tokens the first `depth` marks cover, where the content itself says so."""

    @abstractmethod
    def boundary(self, prompt_tokens: int) -> tuple[tuple[int, int], ...]:
        """Return (marks, tokens) of its end, where a template keeps tokens from running across it."""


class Conversation(History):
    """A history of parts, such as messages, each in canonical form; `length` counts them.

    `chain`: with all of them, and what a template renders before them; `ends`: where in its marks each part ends.
    `form`: the parts that an engine's reply comes back as.
    """

    __slots__ = ("_chain", "_ends", "_form")

    def __init__(
        self,
        chain: Chain,
        ends: list[int],
        shape: bytes,
        form: Callable[[Reply], list[bytes]],
        *,
        content: Content,
    ) -> None:
        super().__init__(chain.marks, chain.digest(), len(ends), shape, content)
        self._chain, self._ends, self._form = chain, ends, form

    def begins_with(self, whole: bytes, length: int) -> bool:
        """See `History`."""
        return 0 < length <= self.length and self.marks[self._ends[length - 1] - 1] == whole

    def continued(self, reply: Reply) -> list[bytes]:
        """See `History`."""
        chain = self._chain.copy()
        chain.add_parts(self._form(reply))
        return chain.marks

    def parts(self, depth: int) -> int:
        """See `History`."""
        ends = self._ends
        if not ends or depth >= ends[-1]:
            return len(ends)
        return bisect_right(ends, depth)

    def tokens_at(self, depth: int) -> int | None:  # noqa: ARG002 - only a template knows
        """See `History`."""
        return None

    def boundary(self, prompt_tokens: int) -> tuple[tuple[int, int], ...]:
        """See `History`."""
        return ((len(self.marks), prompt_tokens),) if prompt_tokens else ()


class PlainPrompt(History):
    """A history of text or of token ids; `length` in bytes or tokens."""

    __slots__ = ("_chain", "_data", "_unit")

    def __init__(self, data: bytes, seed: bytes, shape: bytes, *, unit: int) -> None:
        length = len(data) // unit
        chain = Chain(seed)
        chain.add(data)
        super().__init__(chain.marks, _digest(data[: length * unit]), length, shape, Content.PLAIN)
        self._data, self._unit, self._chain = data, unit, chain

    def begins_with(self, whole: bytes, length: int) -> bool:
        """See `History`."""
        return length <= self.length and _digest(self._data[: length * self._unit]) == whole

    def continued(self, reply: Reply) -> list[bytes]:
        """See `History`. Of token ids the reply's text says nothing."""
        if self._unit == ID_BYTES:
            return self.marks
        chain = self._chain.copy()
        chain.add(reply.escaped)
        return chain.marks

    def parts(self, depth: int) -> int:
        """See `History`."""
        return depth

    def tokens_at(self, depth: int) -> int | None:
        """See `History`."""
        if self._unit != ID_BYTES:
            return None
        offset = STRIDE_BYTES
        for _ in range(depth - 1):
            offset += stride_at(offset)
        return offset // ID_BYTES

    def boundary(self, prompt_tokens: int) -> tuple[tuple[int, int], ...]:  # noqa: ARG002 - text may join at its end
        """See `History`."""
        return ()
