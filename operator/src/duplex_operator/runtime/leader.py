"""Leader election by a Lease: one operator acts, the others stand by; a leader that lost its Lease cannot write.

Differences from the election that the Kubernetes client brings: the work is watched (a leader whose work has ended
gives the Lease up), the Lease is released on an orderly exit, cancellation is awaited, and time is monotonic.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from duplex_kube.api import LEASES, KubeApi, KubeObject
from duplex_kube.errors import ConflictError, KubeError, NotFoundError
from duplex_operator.runtime.clock import Clock
from duplex_operator.runtime.lasting import outcome

log = logging.getLogger(__name__)


class LostLeadershipError(Exception):
    """The Lease may be somebody else's by now. The process must end without another write."""


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Whose Lease, and its times in seconds, which are controller-runtime's.

    A holder that could not renew for ``renew_deadline`` stops; others take over ``duration`` after the last renewal
    that they saw. The difference between the two is what requests still under way have to end in.
    """

    namespace: str
    name: str
    identity: str
    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


class Leadership:
    """Proof of being the leader, as of now.

    ``term`` grows with every change of leader (the Lease's ``leaseTransitions``).
    """

    def __init__(self, clock: Clock, term: int, deadline: float) -> None:
        self.term = term
        self._clock = clock
        self._deadline = deadline

    def check(self) -> None:
        """Raise ``LostLeadershipError`` if the last renewal is too old; to be called right before every write."""
        if self._clock.now() >= self._deadline:
            raise LostLeadershipError(f"the lease of term {self.term} was not renewed in time")

    def extend(self, deadline: float) -> None:
        """Record a renewal."""
        self._deadline = deadline

    def end(self) -> None:
        """Let every ``check`` fail from now on."""
        self._deadline = float("-inf")


class LeaderElection:
    """Takes part in the election for one Lease."""

    def __init__(self, api: KubeApi, settings: LeaseSettings, clock: Clock) -> None:
        self.leadership: Leadership | None = None
        self._api = api
        self._settings = settings
        self._clock = clock
        self._seen: tuple[str, str] | None = None  # holder and renewTime, as last seen
        self._seen_at = 0.0
        self._free_at = float("inf")  # when the holder's lease runs out, unless it renews

    async def run(self, work: Callable[[Leadership], Awaitable[None]]) -> None:
        """Wait to become leader, do ``work`` while being it, release the Lease when ``work`` ends or we are cancelled.

        Raises what ``work`` raises, and ``LostLeadershipError`` when the Lease could not be kept; ``work`` has ended
        by then.
        """
        leadership = await self._acquire()
        self.leadership = leadership
        log.info("leader, term %d", leadership.term)
        working = asyncio.ensure_future(work(leadership))
        renewing = asyncio.ensure_future(self._renew(leadership))
        ended: Iterable[asyncio.Future[None]] = ()
        try:
            ended, _ = await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leadership = None
            await _end(working)
            await _end(renewing)
            await self._release()
        for task in ended:
            outcome(task)

    async def _acquire(self) -> Leadership:
        while True:
            started = self._clock.now()
            try:
                term = await self._try_acquire()
            except KubeError as error:
                log.warning("election: %s", error)
                term = None
            if term is not None:
                return Leadership(self._clock, term, started + self._settings.renew_deadline)
            until_free = max(0.0, self._free_at - self._clock.now())
            await self._clock.sleep(min(self._settings.retry, until_free))

    async def _try_acquire(self) -> int | None:
        self._free_at = float("inf")
        try:
            lease = await self._api.get(LEASES, self._settings.namespace, self._settings.name)
        except NotFoundError:
            lease = await self._api.create(self._lease(1), LEASES)
            return int(lease["spec"]["leaseTransitions"])
        spec = lease.get("spec") or {}
        holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
        if self._seen != (holder, renewed):
            self._seen, self._seen_at = (holder, renewed), self._clock.now()
        duration = float(spec.get("leaseDurationSeconds") or self._settings.duration)
        if holder and self._clock.now() < self._seen_at + duration:
            self._free_at = self._seen_at + duration
            return None
        term = int(spec.get("leaseTransitions") or 0) + 1
        taken = self._lease(term) | {"metadata": lease["metadata"]}
        try:
            await self._api.replace(taken, LEASES)
        except ConflictError:
            return None
        return term

    async def _renew(self, leadership: Leadership) -> None:
        while True:
            await self._clock.sleep(self._settings.retry)
            started = self._clock.now()
            try:
                # A request that hangs must not outlive the deadline, or its late success would look like a renewal.
                async with asyncio.timeout(self._settings.renew_deadline):
                    held = await self._still_held()
            except (KubeError, TimeoutError) as error:
                log.warning("renewing the lease: %s", error)
                leadership.check()
                continue
            if not held:
                leadership.end()
                raise LostLeadershipError("another operator holds the lease")
            leadership.check()
            leadership.extend(started + self._settings.renew_deadline)

    async def _still_held(self) -> bool:
        """Write a new renewTime; false if the Lease is no longer ours."""
        settings = self._settings
        try:
            lease = await self._api.get(LEASES, settings.namespace, settings.name)
        except NotFoundError:
            return False
        if (lease.get("spec") or {}).get("holderIdentity") != settings.identity:
            return False
        lease["spec"]["renewTime"] = self._micro_time()
        await self._api.replace(lease, LEASES)
        return True

    async def _release(self) -> None:
        """Give the Lease up if it is ours, so that the next leader need not wait. A failure only costs that wait."""
        settings = self._settings
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(settings.retry):
                lease = await self._api.get(LEASES, settings.namespace, settings.name)
                if lease["spec"].get("holderIdentity") == settings.identity:
                    lease["spec"]["holderIdentity"] = ""
                    lease["spec"]["renewTime"] = self._micro_time()
                    await self._api.replace(lease, LEASES)

    def _lease(self, term: int) -> KubeObject:
        settings = self._settings
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": settings.name, "namespace": settings.namespace},
            "spec": {
                "holderIdentity": settings.identity,
                "leaseDurationSeconds": round(settings.duration),
                "leaseTransitions": term,
                "acquireTime": self._micro_time(),
                "renewTime": self._micro_time(),
            },
        }

    def _micro_time(self) -> str:
        return self._clock.wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def _end(task: asyncio.Future[None]) -> None:
    """Cancel and wait; the outcome stays in the task."""
    task.cancel()
    await asyncio.wait({task})
