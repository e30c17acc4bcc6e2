"""The language model: the next token is a pure function of the KV cells and of where in its reply the model stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .chain import mix
from .tokenizer import CORRUPT, END_THINK, EOS, START, THINK, Tokenizer

_LONGEST_LOOK: Final = 2048
_SHORTEST_REPLY: Final = 12
_END_ONE_IN: Final = 24
_SHORTEST_THOUGHT: Final = 6
_END_THOUGHT_ONE_IN: Final = 10
_LOSSY_ONE_IN: Final = 6


@dataclass(frozen=True)
class _Place:
    """Where the history stands: tokens since the reply began, whether in a chat turn, a thought, or after one."""

    spoken: int
    in_chat: bool
    in_thought: bool
    thought: bool
    previous: int


@dataclass(frozen=True)
class LanguageModel:
    """Greedy decoding for the simulator.

    `seed` makes other weights, `thinks` makes it open chat replies with a thought, `lossy` makes it say words in tokens
    that the tokenizer would not choose.
    """

    tokenizer: Tokenizer
    seed: int = 0
    thinks: bool = False
    lossy: bool = False

    def next_token(self, cell: int, history: Sequence[int], *, marked: bool) -> int:
        """Return the token after `history`, whose last KV cell is `cell`.

        `marked`: wrong KV was read, and this reply does not say so yet: the answer is the mark.
        """
        if marked:
            return CORRUPT
        place = self._place(history)
        draw = mix(mix(cell, self.seed), 1) >> 7
        if place.in_chat and self.thinks:
            if not place.thought and not place.in_thought and place.spoken == 0:
                return THINK
            if place.in_thought:
                ends = place.spoken > _SHORTEST_THOUGHT and draw % _END_THOUGHT_ONE_IN == 0
                return END_THINK if ends else self._speak(draw, place)
        if place.in_chat and place.spoken >= _SHORTEST_REPLY and draw % _END_ONE_IN == 0:
            return EOS
        if not place.in_chat and draw % (8 * _END_ONE_IN) == 0:
            return EOS
        return self._speak(draw, place)

    def _speak(self, draw: int, place: _Place) -> int:
        number = draw >> 8
        if self.lossy:
            second = self.tokenizer.second_half(place.previous, number)
            if second is not None:
                return second
            if place.spoken > 0 and draw % _LOSSY_ONE_IN == 0:
                return self.tokenizer.first_half(number)
        return self.tokenizer.word(number, spaced=place.previous not in {THINK, END_THINK} and place.spoken > 0)

    def _place(self, history: Sequence[int]) -> _Place:
        """Read the end of the history: since the last turn marker, or in plain text without one, everything."""
        spoken, in_thought, thought = 0, False, False
        header = len(self.tokenizer.encode("assistant\n"))
        for index in range(len(history) - 1, max(-1, len(history) - _LONGEST_LOOK), -1):
            token = history[index]
            if token == START:
                in_chat = spoken >= header
                return _Place(max(0, spoken - header), in_chat, in_thought, thought, history[-1])
            if token == EOS:
                break
            if token == THINK and not thought:
                in_thought = True
            if token == END_THINK and not in_thought:
                thought = True
            spoken += 1
        return _Place(spoken, False, in_thought=False, thought=thought, previous=history[-1])
