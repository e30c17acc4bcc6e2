"""HTTP bodies: whatever the pieces in which they come, the payload and the end are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex_router.wire.body import LAST_CHUNK, BodyReader, chunk
from duplex_router.wire.errors import WireError

from .splitting import cut


def chunked(parts: list[bytes]) -> bytes:
    return b"".join(chunk(part) for part in parts) + LAST_CHUNK


@given(st.lists(st.binary(max_size=40), max_size=6), st.binary(max_size=10), st.data())
def test_a_chunked_body_is_the_same_in_any_pieces(parts: list[bytes], after: bytes, data: st.DataObject) -> None:
    wire = chunked(parts) + after
    reader = BodyReader(length=None, chunked=True)
    payload = b"".join(reader.feed(piece) for piece in cut(data, wire))
    assert payload == b"".join(parts)
    assert reader.done
    assert reader.surplus == after


@given(st.binary(max_size=60), st.binary(max_size=10), st.data())
def test_a_body_of_known_length_is_the_same_in_any_pieces(body: bytes, after: bytes, data: st.DataObject) -> None:
    reader = BodyReader(length=len(body))
    payload = b"".join(reader.feed(piece) for piece in cut(data, body + after))
    assert payload == body
    assert reader.done
    assert reader.surplus == after


def test_extensions_and_trailers_are_skipped() -> None:
    reader = BodyReader(length=None, chunked=True)
    assert reader.feed(b"3;name=value\r\nabc\r\n0\r\nx-check: 1\r\ny: 2\r\n\r\nrest") == b"abc"
    assert reader.done
    assert reader.surplus == b"rest"


def test_a_body_without_framing_ends_with_its_connection() -> None:
    reader = BodyReader(length=None)
    assert reader.feed(b"abc") == b"abc"
    assert not reader.done
    assert reader.end_of_connection()


def test_a_chunked_body_does_not_end_with_its_connection() -> None:
    reader = BodyReader(length=None, chunked=True)
    reader.feed(b"3\r\nab")
    assert not reader.end_of_connection()


@pytest.mark.parametrize(
    "wire",
    [
        b"g\r\nabc\r\n",
        b"-3\r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b"3 3\r\nabc\r\n",
        b"\r\nabc\r\n",
        b"3\r\nabcd\r\n",
        b"1234567890123456\r\n",
        b"3;" + b"x" * 300,
        b"0\r\n" + b"x: y\r\n" * 2000,
    ],
)
def test_broken_framing_is_refused(wire: bytes) -> None:
    reader = BodyReader(length=None, chunked=True)
    with pytest.raises(WireError):
        reader.feed(wire)


def test_a_large_chunk_is_given_on_as_it_comes() -> None:
    reader = BodyReader(length=None, chunked=True)
    assert reader.feed(b"100000\r\nabc") == b"abc"
    assert reader.feed(b"def") == b"def"
