"""The apply cache skips what would change nothing and never what would."""

from typing import Any

from duplex_operator.runtime.apply_cache import ApplyCache, fingerprint, stamped

DESIRED = {"metadata": {"name": "d", "labels": {"a": "b"}}, "spec": {"replicas": 1}}


def on_server(**changes: Any) -> dict[str, Any]:
    metadata = {"name": "d", "labels": {"a": "b"}, "uid": "u", "resourceVersion": "5", "generation": 1}
    return {"metadata": metadata, "spec": {"replicas": 1, "defaulted": True}, **changes}


def current(cache: ApplyCache[str], desired: dict[str, Any], observed: dict[str, Any]) -> bool:
    return cache.is_current("k", desired, observed, fingerprint(observed))


def stands(desired: dict[str, Any], observed: dict[str, Any]) -> bool:
    """Tell whether an operator that has just begun leaves the object alone."""
    return current(ApplyCache(), desired, observed)


def test_current_until_desired_or_server_changes() -> None:
    cache: ApplyCache[str] = ApplyCache()
    assert not current(cache, DESIRED, on_server())
    cache.record("k", DESIRED, on_server())
    assert current(cache, DESIRED, on_server())
    assert not current(cache, {**DESIRED, "spec": {"replicas": 2}}, on_server())
    assert not current(cache, DESIRED, on_server(spec={"replicas": 9, "defaulted": True}))
    cache.forget("k")
    assert not current(cache, DESIRED, on_server())


def test_status_and_the_servers_bookkeeping_are_no_change() -> None:
    before = fingerprint(on_server())
    metadata = {"name": "d", "labels": {"a": "b"}, "uid": "u", "resourceVersion": "9", "generation": 2}
    metadata["annotations"] = {"deployment.kubernetes.io/revision": "1"}
    assert fingerprint(on_server(metadata=metadata, status={"ready": 1}, kind="Deployment")) == before
    assert fingerprint(on_server(metadata={**metadata, "labels": {"a": "c"}})) != before


PODS = {"containers": [{"name": "c", "image": "i", "args": ["a", "b"]}], "volumes": [{"name": "v", "emptyDir": {}}]}
CHILD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "D",
    "metadata": {"name": "d", "annotations": {"a": "b"}},
    "spec": {"replicas": 1, "pods": PODS},
}


def served(**changes: Any) -> dict[str, Any]:
    """Return what a server lists of it: more in every object, but not in a list, and no kind."""
    made = {key: value for key, value in stamped(CHILD).items() if key not in ("apiVersion", "kind")}
    container = {**PODS["containers"][0], "terminationMessagePath": "/dev/log"}
    pods = {**PODS, "containers": [container], "restartPolicy": "Always"}
    metadata = {**made["metadata"], "uid": "u", "resourceVersion": "5"}
    return {**made, "metadata": metadata, "spec": {"replicas": 1, "pods": {**pods, **changes}}, "status": {}}


def test_what_was_applied_as_it_is_desired_and_has_all_of_it_still_stands() -> None:
    assert stands(CHILD, served())


def test_what_was_changed_or_taken_away_since_does_not_stand() -> None:
    other = {"name": "c", "image": "another", "args": ["a", "b"]}
    for changes in (
        {"containers": [other]},
        {"containers": []},
        {"containers": [*PODS["containers"], {"name": "sidecar"}]},
        {"containers": [{"name": "c", "image": "i", "args": ["b", "a"]}]},
        {"volumes": None},
        {"volumes": {"name": "v"}},
        {"volumes": [{"name": "v"}]},
    ):
        assert not stands(CHILD, served(**changes)), changes


def test_what_was_applied_otherwise_does_not_stand_though_it_has_all_that_is_desired() -> None:
    less = {**CHILD, "spec": {"replicas": 1}}
    assert not stands(less, served())
    assert not stands(CHILD, {**served(), "metadata": {"name": "d", "annotations": {"a": "b"}}})
    assert not stands(CHILD, {**served(), "metadata": {"name": "d"}})
