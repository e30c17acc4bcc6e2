"""What the operator sees of one serving, reduced to what decisions need."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from duplex_operator.api import Reason

KubeObject = dict[str, Any]
TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
"""Form of times that we write, always UTC."""

FIRST_TO_GO: Final = "-1000"
"""Deletion cost of an engine pod that nobody needs any more."""

FleetVersion = tuple[int, int]
"""Leader term and counter; compared as a pair."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod is not ready: a reason of the closed list, and words for people."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. ``role`` is prefill, decode or router; ``revision`` is empty for routers.

    ``started``: when its containers last started; ``restarts``: how often they were restarted. ``preflight``: the last
    line of a preflight that let the engine start, empty where there is none. ``draining_since``: since when the
    operator takes the engine out of use, empty where it does not; ``doomed``: it may be deleted. ``cordoned``: its node
    is about to go; ``ending``: within minutes, whatever is still on it. ``over``: its node has ended it for good
    (evicted, shut down, not admitted); its ReplicaSet counts it no more, but its object may stay for ever.
    ``due``: when a terminating one was to be gone; ``stuck``: that is long past, so its node is most likely dead.
    """

    name: str
    role: str
    revision: str
    ip: str
    ready: bool
    terminating: bool
    trouble: Trouble | None
    uid: str = ""
    started: str = ""
    restarts: int = 0
    preflight: str = ""
    draining_since: str = ""
    doomed: bool = False
    node: str = ""
    cordoned: bool = False
    ending: bool = False
    over: bool = False
    due: str = ""
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """One Deployment of engines. ``replicas`` is what its spec asks; the other counts are its status'.

    ``settled``: its controller has seen the newest spec. ``refused``: why its controller cannot create pods (a quota,
    an admission rule), else empty.
    """

    name: str
    role: str
    revision: str
    created: str
    replicas: int
    ready: int
    updated: int
    settled: bool
    refused: str


@dataclass(frozen=True, slots=True)
class RoleObject:
    """One ServingRole. ``replicas``: what its spec asks for, None where nobody has. ``version``: resourceVersion."""

    name: str
    uid: str
    replicas: int | None
    version: str = ""


@dataclass(frozen=True, slots=True)
class ChildRef:
    """An object that the serving owns. ``revision`` is empty for what is not of one revision."""

    kind: str
    name: str
    uid: str
    revision: str


@dataclass(frozen=True, slots=True)
class BrokenPair:
    """A prefill and a decode pod that cannot reach each other. ``since`` in Unix time."""

    prefill: str
    decode: str
    since: float


@dataclass(frozen=True, slots=True)
class Canary:
    """What a router's two-turn conversation last found of a revision.

    ``last_success`` in Unix time, 0 for never. ``failures``: in a row, while clients were not served either.
    """

    last_success: float = 0.0
    reused: bool | None = None
    failures: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What a router has on an engine: legs under way, tokens held, and how much of them it expects to pull again."""

    legs: int = 0
    tokens: int = 0
    value: int = 0


@dataclass(frozen=True, slots=True)
class Reuse:
    """Turns by what reuse came to. ``rejected``: eligible turns that reused nothing, by reason."""

    eligible: int = 0
    full: int = 0
    partial: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouterStats:
    """What one router says of itself: the ``/stats`` document, bounded and with every field optional.

    ``reuse`` is since the router's start, ``recent`` of the last minutes. ``loads`` is by engine pod.
    """

    fleet_version: FleetVersion = (0, 0)
    served_tokens: Mapping[str, int] = field(default_factory=dict)
    bytes_by_revision: Mapping[str, int] = field(default_factory=dict)
    canaries: Mapping[str, Canary] = field(default_factory=dict)
    broken: tuple[BrokenPair, ...] = ()
    loads: Mapping[str, Load] = field(default_factory=dict)
    turns: int = 0
    reuse: Reuse = Reuse()
    recent: Reuse = Reuse()
    saved_prefill_tokens: int = 0
    conversations: int = 0
    held_tokens: int = 0
    kv_bytes_per_token: int = 0
    decode_kv_tokens: int = 0
    backend: str | None = None
    bytes_moved: int = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that is known about one serving's children.

    ``roles``: ServingRoles by role. ``kept``: the engine Deployments of each revision as they were first rendered.
    ``fleet``: the fleet document as written last, None if never. ``fleet_age``: seconds since then. ``stats``: by
    router pod name, only those that answered. ``status``: the serving's present status. ``sees_nodes``: pods tell
    whether their node is about to go. ``ended``: pods that are over; they are none of ``pods``.
    """

    workloads: tuple[Workload, ...] = ()
    router: Workload | None = None
    pods: tuple[Pod, ...] = ()
    children: tuple[ChildRef, ...] = ()
    roles: Mapping[str, RoleObject] = field(default_factory=dict)
    kept: Mapping[str, tuple[KubeObject, ...]] = field(default_factory=dict)
    fleet: KubeObject | None = None
    fleet_age: float = 0.0
    stats: Mapping[str, RouterStats] = field(default_factory=dict)
    status: KubeObject = field(default_factory=dict)
    sees_nodes: bool = False
    ended: tuple[Pod, ...] = ()
