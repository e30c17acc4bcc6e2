"""Strategic merge of a partial pod template: maps by key, lists of named objects by their key, all else replaced.

Keys are those of Kubernetes' own strategic merge patch (patchMergeKey in k8s.io/api/core/v1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_MERGE_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_APPENDED: Final = frozenset({"tolerations"})
"""Lists without a key where adding is what people mean: a pod that tolerates less than its node asks never runs."""

_WHOLE: Final = frozenset({"env", "volumes"})
"""Lists whose items are replaced whole: the members of an item are alternatives, and two of them would contradict."""


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `overlay` merged in; neither is changed. What `overlay` adds to a list comes last."""
    merged = dict(base)
    for key, value in overlay.items():
        merged[key] = _merge_value(key, merged[key], value) if key in merged else value
    return merged


def _merge_value(key: str, base: object, overlay: object) -> object:
    if isinstance(base, Mapping) and isinstance(overlay, Mapping):
        return merge(base, overlay)
    if isinstance(base, list) and isinstance(overlay, list):
        if key in _MERGE_KEYS:
            return _merge_items(key, base, overlay)
        if key in _APPENDED:
            return [*base, *(item for item in overlay if item not in base)]
    return overlay


def _merge_items(key: str, base: Sequence[Any], overlay: Sequence[Any]) -> list[Any]:
    name = _MERGE_KEYS[key]
    merged = list(base)
    positions = {item.get(name): index for index, item in enumerate(merged)}
    for item in overlay:
        position = positions.get(item.get(name)) if isinstance(item, Mapping) else None
        if position is None:
            merged.append(item)
        else:
            merged[position] = item if key in _WHOLE else merge(merged[position], item)
    return merged
