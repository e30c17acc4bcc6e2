"""A tokenizer without a model file: words that the model says, pieces of up to three letters, and bytes for the rest.

`encode` then `decode` is exact for every text. The model's own replies are made of tokens that encode to themselves,
so `decode` then `encode` is exact for them too; the lossy variety breaks that on purpose, as byte-pair vocabularies do
(the same text comes back as other tokens).
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

CORRUPT_MARK: Final = "⟪CORRUPT⟫"
"""What an answer begins with when KV was read that was not computed from the request's own tokens."""

_SPECIALS: Final = ("<pad>", "<s>", "<|im_end|>", "<|im_start|>", "<think>", "</think>", CORRUPT_MARK)
EOS: Final = _SPECIALS.index("<|im_end|>")
START: Final = _SPECIALS.index("<|im_start|>")
THINK: Final = _SPECIALS.index("<think>")
END_THINK: Final = _SPECIALS.index("</think>")
CORRUPT: Final = _SPECIALS.index(CORRUPT_MARK)

_SAID: Final = (
    "the of and to in is that for it as was with be by on not from this at are or an which have its one has can all "
    "each new time when where cache token prefill decode block engine request answer context model history turn "
    "pull hold lease proof prompt layer head state window memory network router server client message stream batch "
    "queue budget digest chain prefix kernel weight step result value shape order part side way first next last "
    "same other only more most then than but so if they we you their our your into over under after before between "
    "about again still never always often both many few long short small large high low fast slow right wrong clear "
    "plain whole exact simple common single double early late ready done open close keep read write send find make "
    "take give"
)
WORDS: Final = tuple(_SAID.split())
"""What the model says; each is one token, with or without a space before it."""

_BYTES_AT: Final = 16
_WORDS_AT: Final = _BYTES_AT + 256
_PIECES: Final = tuple(
    "".join(letters) for size in (1, 2, 3) for letters in itertools.product(string.ascii_lowercase, repeat=size)
)
_SPLIT = re.compile("|".join(map(re.escape, _SPECIALS)) + r"| ?[a-z]+|.", re.DOTALL)


def _vocabulary() -> list[bytes]:
    table = [text.encode() for text in _SPECIALS]
    table += [f"<|reserved_{index}|>".encode() for index in range(len(table), _BYTES_AT)]
    table += [bytes([value]) for value in range(256)]
    table += [text.encode() for word in WORDS for text in (word, f" {word}")]
    known = set(WORDS)
    table += [text.encode() for piece in _PIECES if piece not in known for text in (piece, f" {piece}")]
    return table


class Tokenizer:
    """Text to token ids and back; a pure function of nothing but this module, so every engine has the same."""

    def __init__(self) -> None:
        self._text_of = _vocabulary()
        self._id_of = {text: index for index, text in enumerate(self._text_of) if index >= _WORDS_AT}
        self._special = {text: index for index, text in enumerate(_SPECIALS)}
        self._breakable = [word for word in WORDS if word[1:].encode() in self._id_of]
        self._rest_of: dict[int, list[int]] = {}
        for word in self._breakable:
            self._rest_of.setdefault(self._id_of[f" {word[0]}".encode()], []).append(self._id_of[word[1:].encode()])

    @property
    def size(self) -> int:
        """Return the number of token ids; an id at or above it is out of the vocabulary."""
        return len(self._text_of)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`; special tokens spelled out in it are recognised, as vLLM does."""
        return [token for piece in _SPLIT.findall(text) for token in self._encode_piece(piece)]

    @lru_cache(maxsize=65_536)  # noqa: B019 - one tokenizer lives as long as its process
    def _encode_piece(self, piece: str) -> tuple[int, ...]:
        if piece in self._special:
            return (self._special[piece],)
        data = piece.encode("utf-8", "surrogatepass")
        whole = self._id_of.get(data)
        if whole is not None:
            return (whole,)
        lead = 1 if piece.startswith(" ") else 0
        if len(piece) == lead or not ("a" <= piece[-1] <= "z"):
            return tuple(_BYTES_AT + value for value in data)
        ends = [0, *range(3 + lead, len(piece), 3), len(piece)]
        return tuple(self._id_of[data[start:end]] for start, end in itertools.pairwise(ends))

    def word(self, index: int, *, spaced: bool) -> int:
        """Return the token of the model's word number `index`, with or without a space before it."""
        return _WORDS_AT + 2 * (index % len(WORDS)) + int(spaced)

    def first_half(self, index: int) -> int:
        """Return the token of a spaced first letter of a word that `encode` would give one token (lossy variety)."""
        return self._id_of[f" {self._breakable[index % len(self._breakable)][0]}".encode()]

    def second_half(self, first: int, index: int) -> int | None:
        """Return a token that completes the word begun by `first_half`, or None where `first` begins none."""
        rest = self._rest_of.get(first)
        return rest[index % len(rest)] if rest else None

    def bytes_of(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes that `tokens` spell; ids must be below `size`."""
        return b"".join(self._text_of[token] for token in tokens)

    def decode(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        """Return the text of `tokens`; with `skip_special` the turn markers vanish, as in vLLM's answers."""
        hidden = {EOS, START, 0, 1} if skip_special else set()
        return self.bytes_of(token for token in tokens if token not in hidden).decode("utf-8", "replace")
