"""The fleet: documents, membership, and the choice of engines."""

import json
from typing import Any

import pytest

from duplex_connector.contract import Role
from duplex_router.fleet.document import FleetDocument, FleetError, convert_document, read_document
from duplex_router.fleet.engines import Endpoint, static_endpoints
from duplex_router.fleet.fleet import Fleet

from .test_ledger import Clock

DOCUMENT: dict[str, Any] = {
    "version": [3, 41],
    "serving": {"namespace": "llm", "name": "qwen3-32b", "generation": 7},
    "model": {"name": "qwen3-32b", "blockSize": 16, "connector": "Stock"},
    "policy": {
        "bidirectional": True,
        "ttlSeconds": 480,
        "maxHoldSeconds": 3600,
        "recomputeThresholdTokens": 64,
        "retentionPercent": 50,
        "tenancy": "Header",
        "streams": False,
        "marginSeconds": 5.0,
    },
    "canary": {"enabled": True, "intervalSeconds": 300},
    "revisions": [{"name": "one", "weight": 100, "prefill": "one-p", "decode": "one-d"}],
    "draining": ["pod-9"],
}


def document(**changes: Any) -> FleetDocument:
    return read_document(json.dumps({**DOCUMENT, **changes}).encode())


class Fixture:
    def __init__(self) -> None:
        self.clock = Clock()
        self.gone: list[str] = []
        self.fleet = Fleet(self.clock, lambda engine: self.gone.append(engine.key))

    def serve(self, service: str, *keys: str, **more: Any) -> None:
        self.fleet.take_service(service, [Endpoint(key, "127.0.0.1", 1, pod=f"pod-{key}", **more) for key in keys])


@pytest.fixture
def fixture() -> Fixture:
    found = Fixture()
    found.fleet.take_document(document())
    return found


def test_the_operators_document_is_read_whole() -> None:
    found = document()
    assert found.version == (3, 41)
    assert found.model.connector == "Stock"
    assert (found.policy.ttl_seconds, found.policy.tenancy, found.policy.streams) == (480, "Header", False)
    assert (found.revisions[0].prefill, found.revisions[0].decode) == ("one-p", "one-d")
    assert found.draining == ["pod-9"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": {}}, "name"),
        ({"version": [1]}, "version"),
        ({"policy": {"ttlSeconds": -1}}, "ttlSeconds"),
        ({"policy": {"tenancy": "Cookie"}}, "tenancy"),
        ({"revisions": [{"name": "a", "prefill": "p"}]}, "Services"),
        ({"revisions": DOCUMENT["revisions"] * 2}, "twice"),
    ],
)
def test_a_bad_document_is_refused_with_the_place(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(FleetError, match=says):
        document(**changes)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(FleetError):
        read_document(b"{")


def test_an_older_version_is_ignored(fixture: Fixture) -> None:
    assert not fixture.fleet.take_document(document(version=[2, 99]))
    assert "older" in fixture.fleet.broken
    assert fixture.fleet.document is not None
    assert fixture.fleet.document.version == (3, 41)
    assert fixture.fleet.take_document(document(version=[3, 41], draining=[]))
    assert fixture.fleet.broken == ""


def test_a_revision_is_complete_with_a_ready_engine_of_each_role(fixture: Fixture) -> None:
    assert fixture.fleet.pick_revision() is None
    fixture.serve("one-p", "p1")
    assert not fixture.fleet.complete("one")
    fixture.serve("one-d", "d1", ready=False)
    assert not fixture.fleet.complete("one")
    fixture.serve("one-d", "d1")
    assert fixture.fleet.pick_revision() == "one"


def test_a_draining_engine_gets_no_legs_and_is_still_there(fixture: Fixture) -> None:
    fixture.serve("one-d", "1", "9")
    assert [engine.key for engine in fixture.fleet.ready("one", Role.DECODE)] == ["1"]
    assert "9" in fixture.fleet.engines


def test_an_engine_that_is_gone_is_told(fixture: Fixture) -> None:
    fixture.serve("one-d", "d1", "d2")
    fixture.serve("one-d", "d2")
    assert fixture.gone == ["d1"]
    fixture.fleet.take_document(document(version=[3, 42], revisions=[]))
    assert fixture.gone == ["d1", "d2"]


def test_membership_before_the_document_counts() -> None:
    fixture = Fixture()
    fixture.serve("one-p", "p1")
    fixture.fleet.take_document(document())
    assert [engine.key for engine in fixture.fleet.ready("one", Role.PREFILL)] == ["p1"]


def test_what_is_in_flight_survives_a_change_of_membership(fixture: Fixture) -> None:
    fixture.serve("one-p", "p1")
    fixture.fleet.engines["p1"].legs = 3
    fixture.serve("one-p", "p1", "p2")
    assert fixture.fleet.engines["p1"].legs == 3


TWO = [
    {"name": "one", "weight": 75, "prefill": "one-p", "decode": "one-d"},
    {"name": "two", "weight": 25, "prefill": "two-p", "decode": "two-d"},
]


def test_revisions_share_by_weight_and_conversations_stay(fixture: Fixture) -> None:
    fixture.fleet.take_document(document(version=[3, 42], revisions=TWO))
    for service in ("one-p", "one-d", "two-p", "two-d"):
        fixture.serve(service, service)
    picks = [fixture.fleet.pick_revision() for _ in range(40)]
    assert picks.count("one") == 30
    assert fixture.fleet.pick_revision("two") == "two"
    fixture.serve("two-p")
    assert fixture.fleet.pick_revision("two") == "one"


@pytest.mark.parametrize("url", ["ftp://a:1", "a:1", "http://", "http://a:1/v1", "http://a:99999"])
def test_urls_that_name_no_engine_are_refused(url: str) -> None:
    with pytest.raises(FleetError):
        static_endpoints([url])


def test_a_file_names_engines_by_url() -> None:
    fixture = Fixture()
    urls = {"prefill": ["http://127.0.0.1:1"], "decode": ["http://[::1]:2"]}
    fixture.fleet.take_document(
        convert_document({"model": {"name": "m"}, "revisions": [{"name": "r", "engines": urls}]})
    )
    assert fixture.fleet.complete("r")
    assert [engine.address for engine in fixture.fleet.engines.values()] == [b"127.0.0.1:1", b"[::1]:2"]
