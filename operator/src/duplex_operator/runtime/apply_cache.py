"""What was applied last and what came of it, so that an apply that would change nothing is not sent."""

import hashlib
import json
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from duplex_connector.contract import Annotation

Key = TypeVar("Key", bound=Hashable)

# Written by others as a matter of course: no sign that somebody changed what we applied.
_IGNORED_METADATA = ("resourceVersion", "managedFields", "generation", "creationTimestamp", "uid", "selfLink")
_IGNORED_ANNOTATIONS = ("deployment.kubernetes.io/revision", "endpoints.kubernetes.io/last-change-trigger-time")


def digest(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return a digest of a JSON value that does not depend on the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def fingerprint(obj: dict[str, Any]) -> str:
    """Return a digest of what an object *is*: everything but its status and what the server counts."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _IGNORED_METADATA}
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in _IGNORED_ANNOTATIONS}
    metadata["annotations"] = annotations
    rest = {key: value for key, value in obj.items() if key not in ("metadata", "status", "apiVersion", "kind")}
    return digest([metadata, rest])


def stamped(desired: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the digest of itself among its annotations, for whoever leads next: see ``is_current``."""
    metadata = desired["metadata"]
    annotations = {**(metadata.get("annotations") or {}), Annotation.APPLIED: digest(desired)}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def _has_applied(observed: dict[str, Any]) -> object:
    return (observed["metadata"].get("annotations") or {}).get(Annotation.APPLIED)


def _content(desired: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in desired.items() if key not in ("apiVersion", "kind")}  # no list tells these


def _covers(observed: object, desired: object) -> bool:
    if isinstance(desired, dict):
        return isinstance(observed, dict) and all(
            key in observed and _covers(observed[key], value) for key, value in desired.items()
        )
    if isinstance(desired, list):
        return isinstance(observed, list) and len(observed) == len(desired) and all(map(_covers, observed, desired))
    return observed == desired


class ApplyCache(Generic[Key]):
    """Remembers per object the digest of what was desired and the fingerprint of what the server made of it.

    If both still hold, nobody has changed anything since, and applying again is a request for nothing.
    """

    def __init__(self) -> None:
        self._entries: dict[Key, tuple[str, str]] = {}

    def is_current(self, key: Key, desired: dict[str, Any], observed: dict[str, Any], observed_print: str) -> bool:
        """Tell whether ``desired`` was the last thing applied to ``key`` and is unchanged on the server.

        An object that only another process applied is taken over if it was applied last as it is desired (so nothing of
        what we applied would have to go) and has all of it still. What the server writes in another form (a quantity)
        counts as changed, which costs an apply. ``observed_print`` is the fingerprint of ``observed``.
        """
        wanted = digest(desired)
        if key not in self._entries and _has_applied(observed) == wanted and _covers(observed, _content(desired)):
            self._entries[key] = (wanted, observed_print)
        return self._entries.get(key) == (wanted, observed_print)

    def record(self, key: Key, desired: dict[str, Any], answer: dict[str, Any]) -> None:
        """Remember what the server answered to an apply."""
        self._entries[key] = (digest(desired), fingerprint(answer))

    def forget(self, key: Key) -> None:
        """Forget one object; without effect if it is not known."""
        self._entries.pop(key, None)
