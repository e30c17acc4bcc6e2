"""The servings as last seen, and whether a change of one is work."""

from collections.abc import Iterator

from duplex_kube.api import KubeObject

Key = tuple[str, str]
"""Namespace and name of a serving."""


def key_of(obj: KubeObject) -> Key:
    """Return the key of a serving object."""
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


class Servings:
    """The newest known state of every serving."""

    def __init__(self) -> None:
        self._objects: dict[Key, KubeObject] = {}

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._objects))

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> KubeObject | None:
        """Return the newest object, which must not be changed; None if there is none."""
        return self._objects.get(key)

    def edited(self, key: Key) -> bool:
        """Tell whether the spec of ``key`` is newer than what its status speaks of: somebody waits for that."""
        obj = self._objects.get(key)
        if obj is None:
            return False
        return bool((obj.get("status") or {}).get("observedGeneration") != obj["metadata"].get("generation"))

    def put(self, obj: KubeObject) -> bool:
        """Take an object over unless a newer one is known; tell whether anything but its status differs.

        Our own status writes come back as events: they are no work, or every write would cause the next.
        """
        key = key_of(obj)
        former = self._objects.get(key)
        if former is not None and _same_life(former, obj) and _version(obj) <= _version(former):
            return False
        self._objects[key] = obj
        return former is None or _asked(former) != _asked(obj)

    def remove(self, obj: KubeObject) -> bool:
        """Drop an object that was deleted; false if another life of the same name has been seen since."""
        key = key_of(obj)
        former = self._objects.get(key)
        if former is not None and _same_life(former, obj):
            del self._objects[key]
            return True
        return False

    def knows(self, obj: KubeObject) -> bool:
        """Tell whether this state of the object, or a newer one, has been put."""
        known = self._objects.get(key_of(obj))
        return known is not None and (not _same_life(known, obj) or _version(known) >= _version(obj))


def _same_life(one: KubeObject, other: KubeObject) -> bool:
    return bool(one["metadata"]["uid"] == other["metadata"]["uid"])


def _version(obj: KubeObject) -> int:
    """Resource versions of one kind are ordered integers (KEP-5504; true of etcd's ever before)."""
    return int(obj["metadata"]["resourceVersion"])


def _asked(obj: KubeObject) -> tuple[object, ...]:
    metadata = obj["metadata"]
    return metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp")
