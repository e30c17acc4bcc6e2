"""What engine steps add to an answer: text up to a stop string, token ids, tool calls, the finish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from .body import Asked
from .calls import Call, CallReader
from .request import Status, Token
from .tokenizer import EOS, Tokenizer


@dataclass(frozen=True)
class Piece:
    """What one engine step adds to one choice. `calls`: tool calls that became whole, with their numbers."""

    text: str
    token_ids: list[int]
    finish: str | None = None
    stop_reason: int | str | None = None
    params: dict[str, Any] | None = None
    calls: tuple[tuple[int, Call], ...] = ()
    index: int = 0


def _first_stop(text: str, stops: tuple[str, ...], start: int) -> tuple[int, str] | None:
    found = [(at, stop) for stop in stops if (at := text.find(stop, start)) >= 0]
    return min(found) if found else None


class _Maker:
    """Makes the pieces of one choice."""

    def __init__(self, asked: Asked, index: int) -> None:
        self._reader = CallReader() if asked.calls_tools else None
        self._index = index
        self._called = False

    def make(self, text: str, ids: list[int], token: Token | None = None, stop: str | None = None) -> Piece:
        """Return a piece; `token` where it is the last one, or `stop` where a stop string ends the answer."""
        finish = Status.STOPPED.value if stop is not None else (token.finish.value if token and token.finish else None)
        calls: list[tuple[int, Call]] = []
        if self._reader is not None:
            words = []
            for part in self._reader.feed(text, last=finish is not None):
                if isinstance(part, str):
                    words.append(part)
                else:
                    calls.append(part)
            text = "".join(words)
            self._called = self._called or bool(calls)
        if self._called and finish == Status.STOPPED.value:
            finish = "tool_calls"
        reason = stop if stop is not None else (token.stop_reason if token else None)
        params = token.params if token else None
        return Piece(text, ids, finish, reason, params, tuple(calls), self._index)


async def pieces(
    tokens: AsyncIterator[Token], asked: Asked, tokenizer: Tokenizer, index: int = 0
) -> AsyncIterator[Piece]:
    """Turn tokens into text, hold back what may begin a stop string, and end at one.

    vLLM finds stop strings outside the engine and aborts the request there, so such an answer leaves no hold.
    """
    stops = asked.sampling.stop
    hold_back = max((len(stop) for stop in stops), default=1) - 1
    text, sent, ids = "", 0, list[int]()
    maker = _Maker(asked, index)
    async for token in tokens:
        if token.token_id >= 0:
            ids.append(token.token_id)
        visible = [] if token.token_id in {EOS, -1} and not asked.sampling.ignore_eos else [token.token_id]
        start = max(0, len(text) - hold_back)
        text += tokenizer.decode(visible, skip_special=True)
        stop = _first_stop(text, stops, start)
        if stop is not None:
            at, reason = stop
            yield maker.make(text[sent:at], ids, stop=reason)
            return
        end = len(text) if token.finish else max(sent, len(text) - hold_back)
        if token.finish is not None:
            yield maker.make(text[sent:end], ids, token)
            return
        yield maker.make(text[sent:end], ids)
        sent, ids = end, []


async def merged(choices: Sequence[AsyncIterator[Piece]]) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of all choices as they come; what one of them raises is raised."""
    if len(choices) == 1:
        async for piece in choices[0]:
            yield piece
        return
    queue: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue()

    async def drain(choice: AsyncIterator[Piece]) -> None:
        try:
            async for piece in choice:
                queue.put_nowait(piece)
            queue.put_nowait(None)
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            queue.put_nowait(error)

    tasks = [asyncio.create_task(drain(choice)) for choice in choices]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
