"""HTTP/1.1 message bodies by their framing: chunked, by length, or to the end of the connection (RFC 9112, 6 and 7)."""

from __future__ import annotations

import re
from typing import Final

from .errors import WireError

CRLF: Final = b"\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
MAX_SIZE_LINE: Final = 256
MAX_TRAILER_BYTES: Final = 8 * 1024
MAX_KNOWN_SIZES: Final = 4096
MAX_KNOWN_SIZE_LINE: Final = 8
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\Z")


def chunk(payload: bytes) -> bytes:
    """Frame a payload as one chunk; an empty payload gives nothing, since an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""


class _Sizes(dict[bytes, int]):
    """Chunk sizes by their lines. A stream's lines repeat; a peer that varies them fills this no further."""

    def __missing__(self, line: bytes) -> int:
        found = _SIZE.match(line)
        if not found:
            raise WireError(f"not a chunk size: {line[:40]!r}")
        size = int(found[1], 16)
        if len(self) < MAX_KNOWN_SIZES and len(line) <= MAX_KNOWN_SIZE_LINE:
            self[line] = size
        return size


chunk_size = _Sizes().__getitem__
"""Return the size that a chunk's first line says. Raises WireError."""


def _line_end(data: bytes, position: int) -> int:
    end = data.find(CRLF, position, position + MAX_SIZE_LINE)
    if end < 0 and len(data) - position >= MAX_SIZE_LINE:
        raise WireError("a chunk's first line is too long")
    return end


class BodyReader:
    """Takes a body in any pieces and gives its payload.

    `length` None and not `chunked`: the body ends with the connection, and only `end_of_connection` completes it.
    `done` turns true at the end; what came after it is in `surplus`. Raises WireError on broken framing.
    """

    __slots__ = ("_after_chunk", "_chunked", "_in_chunk", "_in_trailer", "_left", "_pending", "done", "surplus")

    def __init__(self, *, length: int | None, chunked: bool = False) -> None:
        self._chunked = chunked
        self._left = length
        self._pending = b""
        self._in_chunk = 0
        self._after_chunk = False
        self._in_trailer = False
        self.surplus = b""
        self.done = length == 0 and not chunked

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return the payload in them."""
        if self.done:
            self.surplus += data
            return b""
        if self._chunked:
            return self._feed_chunked(data)
        if self._left is None:
            return data
        payload, self.surplus = data[: self._left], data[self._left :]
        self._left -= len(payload)
        self.done = self._left == 0
        return payload

    def end_of_connection(self) -> bool:
        """Say that no more comes; true where that completes the body."""
        if not self._chunked and self._left is None:
            self.done = True
        return self.done

    def _feed_chunked(self, data: bytes) -> bytes:
        data = self._pending + data if self._pending else data
        payload: list[bytes] = []
        position = 0
        while not self._in_trailer:
            if self._in_chunk:
                part = data[position : position + self._in_chunk]
                payload.append(part)
                position += len(part)
                self._in_chunk -= len(part)
                self._after_chunk = self._in_chunk == 0
            if self._after_chunk:
                if len(data) - position < len(CRLF):
                    break
                if data[position : position + 2] != CRLF:
                    raise WireError("a chunk does not end where its size says")
                position, self._after_chunk = position + 2, False
            if self._in_chunk:
                break
            line_end = _line_end(data, position)
            if line_end < 0:
                break
            self._in_chunk = chunk_size(data[position:line_end])
            position = line_end + 2
            self._in_trailer = self._in_chunk == 0
        self._pending = data[position:]
        if self._in_trailer:
            self._read_trailer()
        return b"".join(payload)

    def _read_trailer(self) -> None:
        """Skip trailer fields (RFC 9110, 6.5: they may be discarded) up to the empty line."""
        rest = self._pending
        if rest.startswith(CRLF):
            end = 2
        else:
            found = rest.find(b"\r\n\r\n")
            if found < 0:
                if len(rest) > MAX_TRAILER_BYTES:
                    raise WireError("the trailer is too long")
                return
            end = found + 4
        self.done = True
        self.surplus, self._pending = rest[end:], b""
