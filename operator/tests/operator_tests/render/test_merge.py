"""Strategic merge."""

from __future__ import annotations

from copy import deepcopy

from duplex_operator.render.merge import merge

BASE = {
    "labels": {"a": "1"},
    "containers": [{"name": "x", "image": "1", "ports": [{"containerPort": 80, "name": "web"}]}],
    "volumes": [{"name": "v", "emptyDir": {}}],
    "tolerations": [{"key": "gpu"}],
    "dnsConfig": {"nameservers": ["1.1.1.1"]},
}


def test_maps_go_by_key_and_other_lists_are_replaced() -> None:
    merged = merge(BASE, {"labels": {"b": "2"}, "dnsConfig": {"nameservers": ["8.8.8.8"]}})
    assert merged["labels"] == {"a": "1", "b": "2"}
    assert merged["dnsConfig"] == {"nameservers": ["8.8.8.8"]}


def test_named_objects_go_by_name_and_new_ones_come_last() -> None:
    overlay = {"containers": [{"name": "y"}, {"name": "x", "ports": [{"containerPort": 80, "hostPort": 80}]}]}
    assert merge(BASE, overlay)["containers"] == [
        {"name": "x", "image": "1", "ports": [{"containerPort": 80, "name": "web", "hostPort": 80}]},
        {"name": "y"},
    ]


def test_a_volume_is_replaced_whole() -> None:
    merged = merge(BASE, {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]})
    assert merged["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]


def test_a_variable_is_replaced_whole() -> None:
    base = {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}
    assert merge(base, {"env": [{"name": "A", "value": "1"}]}) == {"env": [{"name": "A", "value": "1"}]}


def test_tolerations_are_added_once() -> None:
    merged = merge(BASE, {"tolerations": [{"key": "gpu"}, {"key": "own"}]})
    assert merged["tolerations"] == [{"key": "gpu"}, {"key": "own"}]


def test_neither_side_is_changed() -> None:
    base, overlay = deepcopy(BASE), {"containers": [{"name": "x", "image": "2"}]}
    merge(base, overlay)
    assert base == BASE
    assert overlay == {"containers": [{"name": "x", "image": "2"}]}
