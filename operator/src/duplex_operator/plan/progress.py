"""How far a rollout has come, since when, and whether it is held: by `rollout.paused`, or because it has stalled."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from duplex_operator.api import DisaggregatedServing
from duplex_operator.api.status import RolloutStatus
from duplex_operator.plan.observed import TIME, Observed
from duplex_operator.plan.rollout import Rollout


@dataclass(frozen=True, slots=True)
class Progress:
    """``reached`` changes with each progress, ``since`` is when it last did; ``counts`` are for people."""

    reached: str
    since: str
    counts: str
    paused: bool
    stalled: bool

    @property
    def held(self) -> bool:
        """Whether nothing moves between revisions."""
        return self.paused or self.stalled

    def words(self, rollout: Rollout) -> str:
        """Say how far each revision is and what it gets."""
        wanted = ", ".join(f"{name} {size.prefill}P+{size.decode}D" for name, size in rollout.sizes.items())
        return f"ready {self.counts or 'none'} of {wanted}"

    def status(self, rollout: Rollout) -> RolloutStatus:
        """Return what the next look at this serving starts from."""
        return RolloutStatus(message=self.words(rollout), reached=self.reached, last_progress_time=self.since)


def look(serving: DisaggregatedServing, wanted: str, observed: Observed, now: datetime) -> Progress:
    """Compare what is ready with what the status says was ready when.

    More or fewer ready engines of the wanted revision, or a smaller old one, are progress; so is another spec. The
    status is the only place where the time is kept: a new leader goes on counting where the last one ended.
    """
    former = observed.status.get("rollout") or {}
    paused = serving.spec.rollout.paused
    reached = f"{serving.metadata.generation}:{wanted}:{_engines(observed, wanted)}:{'paused' if paused else ''}"
    begun = former.get("lastProgressTime") if former.get("reached") == reached else None
    since = begun or now.strftime(TIME)
    limit = timedelta(seconds=serving.spec.rollout.progress_deadline_seconds)
    # Waiting for holds to end is no lack of progress: drainSeconds bounds it.
    busy = paused or any(pod.draining_since and not pod.terminating for pod in observed.pods)
    waited = now.replace(tzinfo=None) - datetime.strptime(since, TIME)  # noqa: DTZ007 - both are UTC
    return Progress(reached, since, _counts(observed), paused, stalled=not busy and waited >= limit)


def _engines(observed: Observed, wanted: str) -> str:
    new = sorted((work.role, work.ready) for work in observed.workloads if work.revision == wanted)
    old = sum(work.replicas for work in observed.workloads if work.revision != wanted)
    return ",".join(f"{role[0]}{ready}" for role, ready in new) + f"/{old}"


def _counts(observed: Observed) -> str:
    ready: dict[str, dict[str, int]] = {}
    for work in observed.workloads:
        ready.setdefault(work.revision, {})[work.role] = work.ready
    return ", ".join(
        f"{name} {roles.get('prefill', 0)}P+{roles.get('decode', 0)}D" for name, roles in sorted(ready.items())
    )
