"""The status of a serving from what is observed: counts, conditions, and the words of kubectl's columns."""

from collections.abc import Iterable, Mapping
from typing import Final

from duplex_connector.contract import Backend, Port
from duplex_operator.api import ConditionType, DisaggregatedServing, Reason, Resolved
from duplex_operator.api.status import (
    EffectiveTuning,
    EstimateStatus,
    RetentionStatus,
    ReuseStatus,
    RoleStatus,
    TransportStatus,
    TuningStatus,
)
from duplex_operator.plan.conditions import Draft
from duplex_operator.plan.drain import Drain, names
from duplex_operator.plan.observed import Observed, Pod, Trouble, Workload
from duplex_operator.plan.pods import HOPELESS, gravest
from duplex_operator.plan.progress import Progress
from duplex_operator.plan.rollout import Rollout
from duplex_operator.plan.stats import CANARY_FAILURES, Total

_NETWORKS: Final[Mapping[str, str]] = {Backend.LIBFABRIC: "efa", Backend.UCX: "tcp"}


def role_status(role: str, wanted: int, revision: str, observed: Observed) -> RoleStatus:
    """Count the pods of a role: prefill, decode or router."""
    works = [observed.router] if role == "router" else [work for work in observed.workloads if work.role == role]
    present = [work for work in works if work is not None]
    newest = [work for work in present if role == "router" or work.revision == revision]
    ready = sum(work.ready for work in present)
    return RoleStatus(
        replicas=wanted,
        ready=ready,
        updated=sum(work.updated for work in newest),
        draining=sum(pod.role == role and (pod.terminating or bool(pod.draining_since)) for pod in observed.pods),
        summary=f"{ready}/{wanted}",
    )


def role_condition(kind: ConditionType, role: str, wanted: int, work: Workload | None, observed: Observed) -> Draft:
    """Say whether all pods of a role's newest revision are ready, and if not, why not."""
    if wanted == 0:
        return Draft(kind, False, Reason.SUSPENDED, f"no {role} pod is wanted: replicas is 0, or suspend is true")
    ready = work.ready if work else 0
    if work and work.settled and ready >= wanted:
        return Draft(kind, True, Reason.PODS_READY, f"{ready} of {wanted} {role} pods are ready")
    trouble = role_trouble(role, work, observed)
    return Draft(kind, False, trouble.reason, f"{ready} of {wanted} {role} pods are ready; {trouble.message}")


def role_trouble(role: str, work: Workload | None, observed: Observed) -> Trouble:
    """Return why pods of a role's newest revision are missing or not ready."""
    if work is not None and work.refused:
        return Trouble(Reason.FORBIDDEN, f"pods cannot be created: {work.refused}")
    revision = work.revision if work else None
    pods, ended = (
        [pod for pod in each if pod.role == role and pod.revision == revision]
        for each in (observed.pods, observed.ended)
    )
    return gravest(pods) or gravest(ended) or Trouble(Reason.WAITING_FOR_PODS, "its pods are being created")


def ready_condition(rollout: Rollout, parts: Mapping[str, Draft], counts: Total, *, suspended: bool) -> Draft:
    """Say whether clients are served: a pair stands, and a token has come through it and a ready router."""
    if suspended:
        reason, message = Reason.SUSPENDED, "suspend is true: everything is scaled to nothing"
    elif serving := serving_revision(rollout, counts):
        message = f"tokens came through the router from revision {serving}"
        return Draft(ConditionType.READY, True, Reason.SERVING, message)
    elif not rollout.able:
        reason, message = _no_pair(parts)
    elif not parts["router"].holds:
        reason, message = parts["router"].reason, parts["router"].message
    elif not counts.answered:
        reason = Reason.WAITING_FOR_ROUTER
        message = (
            f"no router answers the operator on port {Port.ADMIN}: if it stays so, let a NetworkPolicy pass the "
            "operator's namespace to it"
        )
    elif failed := _failed_canary(rollout, counts):
        reason, message = Reason.CANARY_FAILED, failed
    else:
        reason, message = Reason.WAITING_FOR_CANARY, "pods are ready; no token has come through the router yet"
    return Draft(ConditionType.READY, False, reason, message)


def serving_revision(rollout: Rollout, counts: Total) -> str | None:
    """Return the revision that has a ready pair and through which tokens come, the wanted one if it has.

    One whose canary fails again and again, while no client is served either, has served once and no longer does.
    """
    return next((name for name in rollout.able if counts.served_tokens.get(name) and not _fails(name, counts)), None)


def _fails(revision: str, counts: Total) -> bool:
    canary = counts.canaries.get(revision)
    return canary is not None and canary.failures >= CANARY_FAILURES


def _failed_canary(rollout: Rollout, counts: Total) -> str | None:
    """Say why no token comes through, where the canary has tried."""
    for name in rollout.able:
        canary = counts.canaries.get(name)
        if canary is not None and canary.failures:
            return f"no token comes through revision {name}: {canary.message}; see the router's log"
    return None


def _no_pair(parts: Mapping[str, Draft]) -> tuple[Reason, str]:
    troubles = [part for part in (parts["prefill"], parts["decode"]) if not part.holds]
    worst = next((part for part in troubles if part.reason in HOPELESS), next(iter(troubles), None))
    if worst is None:
        return Reason.WAITING_FOR_PODS, "no revision has a ready prefill and a ready decode yet"
    return worst.reason, f"no pair of prefill and decode is ready: {worst.message}"


def progressing_condition(
    wanted: str,
    rollout: Rollout,
    progress: Progress,
    parts: Mapping[str, Draft],
    *,
    drained: Drain,
    observed: Observed,
    suspended: bool,
) -> Draft:
    """Say how the newest revision gets on."""
    kind = ConditionType.PROGRESSING
    if suspended and rollout.finished:
        return Draft(kind, True, Reason.SUSPENDED, "everything is scaled to nothing")
    if rollout.finished and parts["router"].holds:
        return Draft(kind, True, Reason.ROLLED_OUT, f"revision {wanted} runs at its size")
    others = [name for name in rollout.able if name != wanted]
    kept = f"; revision {others[0]} goes on serving" if others else ""
    kept += f"; engines on their way out: {names(drained.waiting)}" if drained.waiting else ""
    stuck = [pod for pod in observed.pods if pod.stuck]
    kept += f"; pods that have not ended in their time, most likely on dead nodes: {_places(stuck)}" if stuck else ""
    kept += f"; engines that wait for replacements: {_places(drained.unreplaced)}" if drained.unreplaced else ""
    hopeless = next((part for part in parts.values() if part.reason in HOPELESS), None)
    waiting = next((part.message for part in parts.values() if not part.holds), "")
    if progress.stalled:
        text = f"revision {wanted} made no progress within rollout.progressDeadlineSeconds and goes no further"
        remedy = "put it right, or apply the former spec to go back"
        return Draft(kind, False, Reason.PROGRESS_DEADLINE_EXCEEDED, f"{text}: {waiting}{kept}; {remedy}")
    if hopeless is not None:
        return Draft(kind, False, hopeless.reason, f"revision {wanted} does not come up: {hopeless.message}{kept}")
    if progress.paused:
        text = f"rollout.paused is true: revision {wanted} waits at {progress.words(rollout)}"
        return Draft(kind, True, Reason.ROLLOUT_PAUSED, f"{text}{kept}")
    return Draft(kind, True, Reason.PROGRESSING, f"revision {wanted} comes up: {progress.words(rollout)}{kept}")


def replacement_condition(drained: Drain, observed: Observed, progress: Progress) -> Draft | None:
    """Say which engines wait on nodes that are about to go, what their replacements lack, and what to do.

    None where no engine does, or where what is there is not all of one revision: then the rollout has more to say.
    """
    waiting = drained.unreplaced
    if not waiting or len({work.revision for work in observed.workloads}) > 1:
        return None
    kinds = {(pod.role, pod.revision) for pod in waiting}
    others = [pod for pod in observed.pods if (pod.role, pod.revision) in kinds]
    refused = next((work.refused for work in observed.workloads if work.refused), "")
    trouble = Trouble(Reason.FORBIDDEN, f"pods cannot be created: {refused}") if refused else gravest(others)
    lacks = trouble.message if trouble else "others are being created"
    stuck = trouble is not None and trouble.reason in {*HOPELESS, Reason.INSUFFICIENT_CAPACITY, Reason.FORBIDDEN}
    text = f"engines wait for replacements before their nodes go: {_places(waiting)}; {lacks}"
    if stuck or progress.stalled:
        text += "; to let them go before, raise rollout.maxUnavailable or delete them; to keep them, uncordon the nodes"
    reason = trouble.reason if trouble and stuck else Reason.PROGRESSING
    if progress.stalled and not stuck:
        reason = Reason.PROGRESS_DEADLINE_EXCEEDED
    return Draft(ConditionType.PROGRESSING, not (stuck or progress.stalled), reason, text)


def _places(pods: Iterable[Pod]) -> str:
    return names(f"{pod.name} (on {pod.node})" for pod in pods)


def transport_status(resolved: Resolved, counts: Total, condition: Draft) -> TransportStatus:
    """Report the transport, as its condition found it."""
    backend = counts.backend or resolved.backend.value
    fell_back = condition.reason is Reason.FELL_BACK_TO_TCP
    return TransportStatus(
        backend=backend,
        network="tcp" if fell_back else _NETWORKS.get(backend, backend.lower()),
        verified=bool(condition.holds),
        bytes_moved=counts.bytes_moved,
    )


def reuse_status(counts: Total) -> ReuseStatus:
    """Report how well finished turns are reused."""
    reuse = counts.reuse
    percent = round(100 * min(reuse.full + reuse.partial, reuse.eligible) / reuse.eligible) if reuse.eligible else None
    return ReuseStatus(
        turns=counts.turns,
        eligible=reuse.eligible,
        full=reuse.full,
        partial=reuse.partial,
        percent=percent,
        summary=None if percent is None else f"{percent}%",
        saved_prefill_tokens=counts.saved_prefill_tokens,
        rejected=dict(reuse.rejected) or None,
    )


def retention_status(serving: DisaggregatedServing, counts: Total) -> RetentionStatus:
    """Report what decode holds, in bytes once an engine has said how many a token takes."""
    size = counts.kv_bytes_per_token
    held = counts.held_tokens * size if size else None
    return RetentionStatus(
        conversations=counts.conversations,
        tokens=counts.held_tokens,
        bytes=held,
        summary=f"{counts.held_tokens} tokens" if held is None else binary_quantity(held),
        budget_bytes=_budget_tokens(serving, counts) * size or None,
    )


def estimate_status(serving: DisaggregatedServing, counts: Total) -> EstimateStatus | None:
    """Report what the decode engines have room for, by their own figures; None before they have said any."""
    if not counts.decode_kv_tokens:
        return None
    longest = serving.spec.model.max_length
    return EstimateStatus(
        kv_bytes_per_token=counts.kv_bytes_per_token or None,
        decode_kv_tokens=counts.decode_kv_tokens,
        max_held_conversations=_budget_tokens(serving, counts) // longest if longest else None,
    )


def _budget_tokens(serving: DisaggregatedServing, counts: Total) -> int:
    percent = serving.spec.kv_transfer.bidirectional.retention_budget.percent_of_kv
    return counts.decode_kv_tokens * percent // 100


def tuning_status(serving: DisaggregatedServing) -> TuningStatus:
    """Report TTL and threshold in force."""
    reuse = serving.spec.kv_transfer.bidirectional
    return TuningStatus(
        effective=EffectiveTuning(
            ttl_seconds=reuse.ttl_seconds, recompute_threshold_tokens=reuse.recompute_threshold_tokens
        )
    )


def binary_quantity(number: int) -> str:
    """Write a number of bytes with the largest binary unit that leaves a whole part, rounded down: 38Gi."""
    for power, unit in reversed(list(enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi")))):
        if number >= 1024**power:
            return f"{number // 1024**power}{unit}"
    return "0"
