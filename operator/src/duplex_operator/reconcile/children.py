"""The children and pods of all servings, kept by watches and found by their serving."""

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from duplex_connector.contract import Label
from duplex_kube.api import NODES, PODS, KubeApi, KubeObject, Resource, Selection
from duplex_kube.reflector import Change, Reflector
from duplex_operator.plan import Pod, pod_of
from duplex_operator.reconcile.kinds import CHILDREN
from duplex_operator.reconcile.nodes import NodeState, state_of
from duplex_operator.reconcile.servings import Key
from duplex_operator.runtime.apply_cache import fingerprint
from duplex_operator.runtime.clock import Clock

SELECTOR = Label.SERVING
"""Label selector (the key exists): all that any serving owns, and nothing else of the cluster."""


@dataclass(frozen=True)
class Child:
    """One owned object. ``owner`` is the uid of its controller; ``fingerprint`` changes when anybody changes it."""

    kind: str
    name: str
    uid: str
    owner: str
    serving: str
    fingerprint: str
    obj: KubeObject


@dataclass(frozen=True)
class PodRecord:
    """A pod and the serving whose label it bears."""

    serving: str
    pod: Pod


ChildName = tuple[str, str]
"""Kind and name."""


class Children:
    """All children and pods in the watched namespaces. ``on_change`` gets the key of a serving whose own changed.

    ``nodes``: watch the nodes too, which takes a right on all of the cluster.
    """

    def __init__(
        self,
        api: KubeApi,
        namespaces: Sequence[str],
        clock: Clock,
        on_change: Callable[[Key], None],
        *,
        nodes: bool = False,
    ) -> None:
        self.sees_nodes = nodes
        self._on_change = on_change
        self._leaving: dict[str, NodeState] = {}
        self._children: dict[Key, dict[ChildName, Child]] = defaultdict(dict)
        self._pods: dict[Key, dict[str, Pod]] = defaultdict(dict)
        places = [Selection(namespace, SELECTOR) for namespace in namespaces] or [Selection(None, SELECTOR)]
        times: dict[str, Any] = {"clock": clock.now, "sleep": clock.sleep}
        self.reflectors: list[Reflector[Child] | Reflector[PodRecord] | Reflector[NodeState]] = []
        if nodes:
            every = Selection(None)
            self.reflectors.append(Reflector(api, NODES, every, trim=state_of, on_change=self._node_changed, **times))
        for place in places:
            for resource in CHILDREN:
                trim = partial(_child, resource)
                self.reflectors.append(
                    Reflector(api, resource, place, trim=trim, on_change=self._child_changed, **times)
                )
            self.reflectors.append(Reflector(api, PODS, place, trim=_pod, on_change=self._pod_changed, **times))

    async def synced(self) -> None:
        """Wait until everything has been listed once."""
        for reflector in self.reflectors:
            await reflector.synced.wait()

    def of(self, key: Key) -> Mapping[ChildName, Child]:
        """Return the children labelled with a serving's name, by kind and name, whoever owns them."""
        return self._children.get(key, {})

    def pods_of(self, key: Key) -> tuple[Pod, ...]:
        """Return the pods labelled with a serving's name, with what their nodes are up to."""
        return tuple(self._placed(pod) for pod in self._pods.get(key, {}).values())

    def _placed(self, pod: Pod) -> Pod:
        state = self._leaving.get(pod.node)
        return pod if state is None else replace(pod, cordoned=True, ending=state is NodeState.ENDS)

    def _child_changed(self, change: Change[Child]) -> None:
        namespace = change.key[0]
        if change.old is not None:
            self._drop(self._children, (namespace, change.old.serving), (change.old.kind, change.old.name))
        if change.new is not None:
            self._children[namespace, change.new.serving][change.new.kind, change.new.name] = change.new
        self._tell(namespace, [one.serving for one in (change.old, change.new) if one is not None])

    def _pod_changed(self, change: Change[PodRecord]) -> None:
        namespace = change.key[0]
        if change.old is not None:
            self._drop(self._pods, (namespace, change.old.serving), change.old.pod.name)
        if change.new is not None:
            self._pods[namespace, change.new.serving][change.new.pod.name] = change.new.pod
        self._tell(namespace, [one.serving for one in (change.old, change.new) if one is not None])

    def _node_changed(self, change: Change[NodeState]) -> None:
        _, name = change.key
        before = self._leaving.pop(name, None)
        after = change.new if change.new is not NodeState.STAYS else None
        if after is not None:
            self._leaving[name] = after
        if before is not after:
            for key in [key for key, pods in self._pods.items() if any(pod.node == name for pod in pods.values())]:
                self._on_change(key)

    @staticmethod
    def _drop(index: dict[Key, dict[Any, Any]], key: Key, name: object) -> None:
        del index[key][name]
        if not index[key]:
            del index[key]

    def _tell(self, namespace: str, servings: list[str]) -> None:
        for serving in dict.fromkeys(servings):
            self._on_change((namespace, serving))


def controller_of(obj: KubeObject) -> str:
    """Return the uid of an object's controller, empty if it has none."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def _shared(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value whose texts are one object each: a thousand servings say mostly the same."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        return {sys.intern(key): _shared(each) for key, each in value.items()}
    return [_shared(each) for each in value] if isinstance(value, list) else value


def _child(resource: Resource, obj: KubeObject) -> Child:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return Child(
        kind=resource.kind,
        name=metadata["name"],
        uid=metadata["uid"],
        owner=controller_of(obj),
        serving=metadata["labels"][Label.SERVING],
        fingerprint=fingerprint(obj),
        obj=_shared({**obj, "metadata": metadata}),
    )


def _pod(obj: KubeObject) -> PodRecord:
    return PodRecord(obj["metadata"]["labels"][Label.SERVING], pod_of(obj))
