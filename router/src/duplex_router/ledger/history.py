"""The content of a request as a chain of marks, so that a later request that shares a beginning is recognised."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, Protocol

import xxhash

from duplex_router.wire.reply import Reply

from .chain import STRIDE_BYTES, Chain, stride_at
from .content import Content

ID_BYTES: Final = 4


class History(Protocol):
    """One request's content. `marks`: the chain's; `whole` and `length` name all of it.

    `shape`: digest of everything that may decide the prompt besides its content, to prefer among equal matches.
    `content`: what it is made of; only asked where nothing is proved.
    """

    marks: list[bytes]
    whole: bytes
    length: int
    shape: bytes
    content: Content

    def begins_with(self, whole: bytes, length: int) -> bool:
        """Tell whether the first `length` of this history are all of the history that `whole` and `length` name."""
        ...

    def continued(self, reply: Reply) -> list[bytes]:
        """Return the marks of this history with the engine's reply after it, as a client would send it back."""
        ...

    def parts(self, depth: int) -> int:
        """Return how many whole parts (messages, or strides of a prompt) the first `depth` marks cover."""
        ...

    def tokens_at(self, depth: int) -> int | None:
        """Return how many tokens the first `depth` marks cover, where the content itself says so."""
        ...

    def boundary(self, prompt_tokens: int) -> tuple[tuple[int, int], ...]:
        """Return (marks, tokens) of its end, where a template keeps tokens from running across it."""
        ...


class Conversation:
    """A history of parts, such as messages, each in canonical form; `length` counts them.

    `chain`: with all of them, and what a template renders before them; `ends`: where in its marks each part ends.
    `form`: the parts that an engine's reply comes back as.
    """

    __slots__ = ("_chain", "_ends", "_form", "content", "length", "marks", "shape", "whole")

    def __init__(
        self,
        chain: Chain,
        ends: list[int],
        shape: bytes,
        form: Callable[[Reply], list[bytes]],
        *,
        content: Content,
    ) -> None:
        self._chain, self._ends, self._form = chain, ends, form
        self.content = content
        self.shape = shape
        self.marks = chain.marks
        self.whole = chain.digest()
        self.length = len(ends)

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
        return bisect_right(self._ends, depth)

    def tokens_at(self, depth: int) -> int | None:  # noqa: ARG002 - only a template knows
        """See `History`."""
        return None

    def boundary(self, prompt_tokens: int) -> tuple[tuple[int, int], ...]:
        """See `History`."""
        return ((len(self.marks), prompt_tokens),) if prompt_tokens else ()


class PlainPrompt:
    """A history of text or of token ids; `length` in bytes or tokens."""

    __slots__ = ("_chain", "_data", "_unit", "content", "length", "marks", "shape", "whole")

    def __init__(self, data: bytes, seed: bytes, shape: bytes, *, unit: int) -> None:
        self._data, self._unit = data, unit
        self.content = Content.PLAIN
        self._chain = Chain(seed)
        self._chain.add(data)
        self.shape = shape
        self.length = len(data) // unit
        self.marks = self._chain.marks
        self.whole = self._digest(self.length)

    def _digest(self, length: int) -> bytes:
        return xxhash.xxh3_128_digest(self._data[: length * self._unit])

    def begins_with(self, whole: bytes, length: int) -> bool:
        """See `History`."""
        return length <= self.length and self._digest(length) == whole

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
