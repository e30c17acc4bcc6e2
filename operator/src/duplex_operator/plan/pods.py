"""From a Pod to why it is not ready, in words that say what to do."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from duplex_connector.contract import Annotation, Label
from duplex_operator.api import Reason
from duplex_operator.api.pod_template import PREFLIGHT_CONTAINER
from duplex_operator.plan.crashes import cause_of
from duplex_operator.plan.observed import FIRST_TO_GO, TIME, KubeObject, Pod, Trouble

_IMAGE_WAITS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "ImageInspectError",
    }
)
STUCK_SECONDS: Final = 120.0
"""How long after its grace period a terminating pod counts as there. A kubelet that lives ends it within seconds."""

_OVER: Final = frozenset({"Failed", "Succeeded"})
"""Phases that no pod leaves: containers are restarted for ever, so it is the node that ended them."""

_LAST_WORDS: Final = 600
"""Longest quotation of a container, in characters, from its end."""

_OOM: Final = "OOMKilled"

_GRAVITY: Final = (
    Reason.PREFLIGHT_FAILED,
    Reason.CRASH_LOOP,
    Reason.IMAGE_PULL,
    Reason.INSUFFICIENT_CAPACITY,
    Reason.PODS_NOT_READY,
    Reason.MODEL_LOADING,
    Reason.WAITING_FOR_PODS,
)
"""Reasons of pods, gravest first."""

HOPELESS: Final = frozenset({Reason.PREFLIGHT_FAILED, Reason.CRASH_LOOP, Reason.IMAGE_PULL})
"""Reasons that do not go away by waiting."""


def pod_of(obj: KubeObject) -> Pod:
    """Reduce a Pod object to what decisions need."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    terminating = "deletionTimestamp" in metadata
    return Pod(
        name=metadata["name"],
        role=labels.get(Label.ROLE, ""),
        revision=labels.get(Label.REVISION, ""),
        ip=status.get("podIP") or "",
        ready=ready,
        terminating=terminating,
        trouble=None if ready or terminating else _trouble(status),
        uid=metadata.get("uid") or "",
        started=max((_began(container) for container in status.get("containerStatuses") or ()), default=""),
        restarts=sum(container.get("restartCount") or 0 for container in status.get("containerStatuses") or ()),
        preflight=_preflight(status),
        draining_since=_time(annotations.get(Annotation.DRAINING)),
        node=(obj.get("spec") or {}).get("nodeName") or "",
        doomed=annotations.get(Annotation.DELETION_COST) == FIRST_TO_GO,
        over=status.get("phase") in _OVER,
        due=_time(metadata.get("deletionTimestamp")),
    )


def with_stuck(pods: Iterable[Pod], now: datetime) -> tuple[Pod, ...]:
    """Tell of each pod whether it is stuck: nobody can wait for what a dead node keeps."""
    latest = (now - timedelta(seconds=STUCK_SECONDS)).strftime(TIME)
    return tuple(replace(pod, stuck=True) if pod.due and pod.due <= latest else pod for pod in pods)


def _time(written: str | None) -> str:
    """Return a time that we wrote, empty where somebody else has written something else in its place."""
    try:
        return datetime.strptime(written or "", TIME).strftime(TIME)  # noqa: DTZ007 - only its form counts
    except ValueError:
        return ""


def gravest(pods: Iterable[Pod]) -> Trouble | None:
    """Return the trouble to report for a group of pods: the gravest, with how many pods have it."""
    troubled = [(pod.name, pod.trouble) for pod in pods if pod.trouble is not None]
    if not troubled:
        return None
    # By name among equals: the same pods give the same text, whatever their order.
    name, worst = min(troubled, key=lambda pair: (_GRAVITY.index(pair[1].reason), pair[0]))
    same = sum(trouble.reason is worst.reason for _, trouble in troubled)
    others = f" (and {same - 1} more like it)" if same > 1 else ""
    return Trouble(worst.reason, f"pod {name}{others}: {worst.message}")


def _began(container: Mapping[str, Any]) -> str:
    return str(((container.get("state") or {}).get("running") or {}).get("startedAt") or "")


def _preflight(status: Mapping[str, Any]) -> str:
    """Return the verdict that a preflight left where it let the engine start."""
    for container in status.get("initContainerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if container["name"] == PREFLIGHT_CONTAINER and not ended.get("exitCode"):
            return str(ended.get("message") or "").strip()[-_LAST_WORDS:]
    return ""


def _trouble(status: Mapping[str, Any]) -> Trouble:
    if status.get("phase") in _OVER:
        why, words = status.get("reason") or status["phase"], status.get("message") or "its node says no more"
        return Trouble(Reason.PODS_NOT_READY, f"its node ended it: {why}: {words}")
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Trouble(
                Reason.INSUFFICIENT_CAPACITY,
                f"no node takes it: {condition.get('message', '')}; add nodes of the instance type, or free some",
            )
    init, main = status.get("initContainerStatuses") or [], status.get("containerStatuses") or []
    for container in [*init, *main]:
        found = _container_trouble(container)
        if found is not None:
            return found
    return _waiting(status, init, main)


def _container_trouble(container: Mapping[str, Any]) -> Trouble | None:
    name, state = container["name"], container.get("state") or {}
    waiting = state.get("waiting") or {}
    if waiting.get("reason") in _IMAGE_WAITS:
        words = waiting.get("message") or waiting["reason"]
        return Trouble(
            Reason.IMAGE_PULL,
            f"image {container.get('image', '')}: {words}; check the name, the tag and the pull secret",
        )
    ended = state.get("terminated") or {}
    if not ended.get("exitCode") and not container.get("ready"):
        ended = (container.get("lastState") or {}).get("terminated") or {}
    if ended.get("exitCode"):
        reason = Reason.PREFLIGHT_FAILED if name == PREFLIGHT_CONTAINER else Reason.CRASH_LOOP
        return Trouble(reason, _last_words(name, container.get("restartCount", 0), ended))
    if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        words = waiting.get("message") or "no message"
        return Trouble(Reason.PODS_NOT_READY, f"container {name} cannot start: {waiting['reason']}: {words}")
    return None


def _last_words(name: str, restarts: int, ended: Mapping[str, Any]) -> str:
    why = ended.get("reason") or ""
    how = f"exit code {ended['exitCode']}" + (f", {why}" if why not in ("", "Error") else "")
    ending = f"container {name} ended ({how}, restarted {restarts} times)"
    if why == _OOM:
        ending += "; it took more memory than its limit: raise limits.memory in the role's resources"
    words = str(ended.get("message") or "").strip()
    cause = cause_of(words) if name != PREFLIGHT_CONTAINER else None  # whose last line is cause and remedy itself
    if cause is not None:
        return f"{ending}: {cause.line}; {cause.remedy}"
    return ending + (f"; its last words: {words[-_LAST_WORDS:]}" if words else "")


def _started(status: Mapping[str, Any], main: Sequence[Any]) -> Trouble:
    """Tell a pod that is on its way from one that was ready and is no longer.

    The Ready condition turns False when the pod is made, before its containers start, and stays so until it is ready.
    """
    begun = max(container["state"]["running"].get("startedAt") or "" for container in main)
    turned = next((c.get("lastTransitionTime") for c in status.get("conditions") or () if c["type"] == "Ready"), None)
    if (turned or "") > begun:
        return Trouble(Reason.PODS_NOT_READY, "it no longer answers its readiness probe")
    return Trouble(Reason.WAITING_FOR_PODS, "it has started and does not answer its readiness probe yet")


def _waiting(status: Mapping[str, Any], init: Sequence[Any], main: Sequence[Any]) -> Trouble:
    if main and all((container.get("state") or {}).get("running") for container in main):
        if all(container.get("started") for container in main):
            return _started(status, main)
        return Trouble(Reason.MODEL_LOADING, "the engine loads its model")
    busy = next((c["name"] for c in init if (c.get("state") or {}).get("running")), None)
    return Trouble(
        Reason.WAITING_FOR_PODS,
        f"init container {busy} runs"
        if busy
        else f"its containers are being created ({status.get('phase', 'Pending')})",
    )
