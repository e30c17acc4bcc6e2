"""The shared names: no two that must differ are equal, and the capability table answers."""

from __future__ import annotations

import pytest

from duplex_connector import contract


def values(owner: type) -> list[str]:
    return [value for name, value in vars(owner).items() if name.isupper()]


@pytest.mark.parametrize("owner", [contract.Label, contract.Params, contract.Duplex, contract.Header, contract.Metric])
def test_no_name_stands_twice(owner: type) -> None:
    names = values(owner)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.33.0", (0, 33)),
        ("v0.32.1", (0, 32)),
        ("0.33", (0, 33)),
        ("nightly", None),
        ("", None),
    ],
)
def test_a_version_is_read_from_a_plain_tag(text: str, expected: tuple[int, int] | None) -> None:
    assert contract.parse_version(text) == expected


def test_streamed_params_come_with_0_33() -> None:
    older, newer = contract.capability("0.32.0"), contract.capability("0.33.0")
    assert older is not None
    assert newer is not None
    assert not older.streams_params
    assert newer.streams_params


def test_the_expiry_guard_comes_with_0_26() -> None:
    unsafe, safe = contract.capability("0.25.1"), contract.capability("0.26.0")
    assert unsafe is not None
    assert safe is not None
    assert not unsafe.expiry_guard
    assert safe.expiry_guard


def test_an_unknown_release_has_no_row() -> None:
    assert contract.capability("0.20.2") is None
    assert contract.capability("latest") is None


def test_the_keep_prefix_cannot_be_taken_for_a_heartbeat() -> None:
    assert not contract.KEEP_PREFIX.startswith("HB:")
