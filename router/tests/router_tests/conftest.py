"""Engines that the tests of one run share; each test has conversations and a router of its own."""

from collections.abc import Iterator

import pytest

from duplex_connector.contract import ConnectorKind, Role

from .rig import Engines, launch, running


def _engines(kind: ConnectorKind, count: int, *flags: str) -> Iterator[Engines]:
    prefill = [launch(Role.PREFILL, kind, *flags) for _ in range(count)]
    decode = [launch(Role.DECODE, kind, *flags) for _ in range(count)]
    plain = launch(None, kind, *flags)
    with running(*prefill, *decode, plain):
        yield Engines(kind, prefill, decode, plain)


@pytest.fixture(scope="session")
def guarded() -> Iterator[Engines]:
    """Run two prefill and two decode engines that prove what they pull; prefill caches nothing of its own."""
    yield from _engines(ConnectorKind.GUARDED, 2, "--no-enable-prefix-caching")


@pytest.fixture(scope="session")
def stock() -> Iterator[Engines]:
    """Run a stock pair with a prefix-stable template and a vocabulary in which text does not round-trip."""
    yield from _engines(ConnectorKind.STOCK, 1, "--no-enable-prefix-caching", "--sim-tokenizer", "bpe-lossy")
