"""The election: one leader at a time, fenced, watched, and quick to hand over when it ends in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from duplex_kube.api import LEASES
from duplex_kube.errors import TransientError
from duplex_operator.runtime.lasting import EndedError
from duplex_operator.runtime.leader import LeaderElection, Leadership, LeaseSettings, LostLeadershipError
from operator_tests.fake_clock import FakeClock, settle
from operator_tests.fake_kube import FakeKube


@dataclass
class Candidate:
    """One operator process: what it was told, and whether its work runs."""

    terms: list[int] = field(default_factory=list)
    working: bool = False
    leadership: Leadership | None = None
    task: asyncio.Task[None] | None = None
    cut_off: bool = False

    def line(self) -> None:
        """Stand between this process and the API server's writes."""
        if self.cut_off:
            raise TransientError("cut off")

    async def work(self, leadership: Leadership) -> None:
        self.terms.append(leadership.term)
        self.leadership = leadership
        self.working = True
        try:
            await asyncio.Event().wait()
        finally:
            self.working = False


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.api = FakeKube()
        self.candidates: list[Candidate] = []

    async def stand(self, identity: str) -> Candidate:
        candidate = Candidate()
        settings = LeaseSettings("ns", "lease", identity)
        election = LeaderElection(self.api.guarded(candidate.line), settings, self.clock)
        candidate.task = asyncio.create_task(election.run(candidate.work))
        self.candidates.append(candidate)
        await settle()
        return candidate

    async def holder(self) -> str:
        return str((await self.api.get(LEASES, "ns", "lease"))["spec"]["holderIdentity"])


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    made = World()
    yield made
    tasks = [c.task for c in made.candidates if c.task]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def test_one_leads_and_the_other_stands_by_for_as_long_as_it_renews(world: World) -> None:
    first = await world.stand("a")
    second = await world.stand("b")
    await world.clock.advance(600)
    assert (first.working, second.working) == (True, False)
    assert first.leadership is not None
    first.leadership.check()


async def test_an_orderly_end_hands_over_at_once_with_a_higher_term(world: World) -> None:
    first = await world.stand("a")
    second = await world.stand("b")
    assert first.task is not None
    first.task.cancel()
    await settle()
    assert not first.working
    assert await world.holder() == ""
    await world.clock.advance(2.1)
    assert second.working
    assert second.terms[0] > first.terms[0]


async def test_a_killed_leader_is_followed_after_the_lease_has_run_out_and_not_before(world: World) -> None:
    first = await world.stand("a")
    second = await world.stand("b")
    await world.clock.advance(4)
    first.cut_off = True
    await world.clock.advance(11)
    assert not second.working
    await world.clock.advance(8)
    assert second.working


async def test_work_that_something_else_cancelled_is_told_and_gives_the_lease_up(world: World) -> None:
    election = LeaderElection(world.api, LeaseSettings("ns", "lease", "a"), world.clock)

    async def work(_leadership: Leadership) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    with pytest.raises(EndedError):
        await election.run(work)
    assert await world.holder() == ""


async def test_who_stands_by_takes_over_in_the_moment_that_the_lease_runs_out(world: World) -> None:
    first = await world.stand("a")
    await world.clock.advance(0.5)
    second = await world.stand("b")  # looks half a second after each renewal, and so saw the last one at 1004.5
    await world.clock.advance(4)
    first.cut_off = True
    await world.clock.advance(14.9)
    assert not second.working
    await world.clock.advance(0.2)
    assert second.working


async def test_a_lease_that_cannot_be_read_is_asked_for_every_two_seconds(world: World) -> None:
    await world.stand("a")
    second = await world.stand("b")
    await world.clock.advance(4)
    asked = 0

    def away(_verb: str, _plural: str, _name: str) -> None:
        nonlocal asked
        asked += 1
        assert asked < 100
        raise TransientError("away")

    world.api.cluster.before = away
    await world.clock.advance(20)
    assert not second.working
    assert asked >= 10


async def test_a_leader_that_cannot_renew_stops_before_another_may_start(world: World) -> None:
    first = await world.stand("a")
    assert first.task is not None
    await world.clock.advance(4)
    first.cut_off = True
    await world.clock.advance(9)
    assert first.working
    await world.clock.advance(3)
    assert not first.working
    with pytest.raises(LostLeadershipError):
        await first.task


async def test_a_leader_that_was_stopped_and_wakes_cannot_write(world: World) -> None:
    first = await world.stand("a")
    assert first.leadership is not None
    fenced = world.api.guarded(first.leadership.check)
    await fenced.create({"metadata": {"name": "x", "namespace": "n"}}, LEASES)
    world.clock.jump(10)
    with pytest.raises(LostLeadershipError):
        await fenced.create({"metadata": {"name": "y", "namespace": "n"}}, LEASES)


async def test_a_leader_whose_lease_was_taken_ends(world: World) -> None:
    first = await world.stand("a")
    assert first.task is not None
    lease = await world.api.get(LEASES, "ns", "lease")
    lease["spec"]["holderIdentity"] = "thief"
    await world.api.replace(lease, LEASES)
    await world.clock.advance(2.1)
    assert not first.working
    with pytest.raises(LostLeadershipError, match="another"):
        await first.task
    assert await world.holder() == "thief"


async def test_a_leader_whose_work_fails_gives_the_lease_up(world: World) -> None:
    async def broken(_: Leadership) -> None:
        raise RuntimeError("work ended")

    election = LeaderElection(world.api, LeaseSettings("ns", "lease", "a"), world.clock)
    with pytest.raises(RuntimeError, match="work ended"):
        await election.run(broken)
    assert await world.holder() == ""


async def test_the_term_counts_on_from_the_lease_and_the_same_holder_name_is_a_new_term(world: World) -> None:
    first = await world.stand("a")
    assert first.task is not None
    first.task.cancel()
    await settle()
    again = await world.stand("a")
    assert again.terms == [first.terms[0] + 1]


async def test_another_holders_clock_does_not_matter(world: World) -> None:
    """A renewTime of another day is only a text that must change; what counts is how long it has not."""
    first = await world.stand("a")
    assert first.task is not None
    lease = await world.api.get(LEASES, "ns", "lease")
    lease["spec"] |= {"holderIdentity": "z", "renewTime": "1999-01-01T00:00:00.000000Z"}
    await world.api.replace(lease, LEASES)
    second = await world.stand("b")
    await world.clock.advance(14)
    assert not second.working
    await world.clock.advance(3)
    assert second.working
