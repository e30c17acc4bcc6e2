"""The apply cache skips what would change nothing and never what would."""

from typing import Any

from duplex_operator.runtime.apply_cache import ApplyCache, fingerprint

DESIRED = {"metadata": {"name": "d", "labels": {"a": "b"}}, "spec": {"replicas": 1}}


def on_server(**changes: Any) -> dict[str, Any]:
    metadata = {"name": "d", "labels": {"a": "b"}, "uid": "u", "resourceVersion": "5", "generation": 1}
    return {"metadata": metadata, "spec": {"replicas": 1, "defaulted": True}, **changes}


def test_current_until_desired_or_server_changes() -> None:
    cache: ApplyCache[str] = ApplyCache()
    assert not cache.is_current("k", DESIRED, fingerprint(on_server()))
    cache.record("k", DESIRED, on_server())
    assert cache.is_current("k", DESIRED, fingerprint(on_server()))
    assert not cache.is_current("k", {**DESIRED, "spec": {"replicas": 2}}, fingerprint(on_server()))
    assert not cache.is_current("k", DESIRED, fingerprint(on_server(spec={"replicas": 9, "defaulted": True})))
    assert not cache.is_current("k", DESIRED, None)
    cache.forget("k")
    assert not cache.is_current("k", DESIRED, fingerprint(on_server()))


def test_status_and_the_servers_bookkeeping_are_no_change() -> None:
    before = fingerprint(on_server())
    metadata = {"name": "d", "labels": {"a": "b"}, "uid": "u", "resourceVersion": "9", "generation": 2}
    metadata["annotations"] = {"deployment.kubernetes.io/revision": "1"}
    assert fingerprint(on_server(metadata=metadata, status={"ready": 1}, kind="Deployment")) == before
    assert fingerprint(on_server(metadata={**metadata, "labels": {"a": "c"}})) != before
