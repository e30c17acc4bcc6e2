"""Operators on the real API server that follow one another or stand by: one writes, and nothing twice."""

import asyncio
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from duplex_kube.api import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
)
from duplex_kube.client import connect
from duplex_kube.errors import ConflictError, NotFoundError
from duplex_lab.control_plane import ControlPlane
from duplex_operator.reconcile.kinds import CHILDREN
from duplex_operator.runtime.leader import LostLeadershipError

from .harness import World, a_serving, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]


async def test_an_operator_that_starts_writes_nothing_of_what_stands(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
        await asyncio.sleep(1)
    before = await world.versions(*CHILDREN, serving="chat")
    async with world.operator("operator-b") as host:

        async def looked() -> bool:
            return b'reconciles_total{outcome="success"}' in host.metrics.render()

        await eventually(looked)
        for _ in range(3):
            host.queue.add((world.namespace, "chat"))
            await asyncio.sleep(0.3)
        assert b'writes_total{verb="apply"}' not in host.metrics.render()
    assert await world.versions(*CHILDREN, serving="chat") == before


async def test_what_was_changed_while_no_operator_ran_is_changed_back(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
    (role, revision), deployment = next(iter((await world.engines("chat")).items()))
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    image, container["image"] = container["image"], "example.com/another:1"
    deployment["metadata"].pop("managedFields")
    await world.client.replace(deployment, DEPLOYMENTS)
    async with world.operator("operator-b"):

        async def back() -> bool:
            pod = (await world.engines("chat"))[role, revision]["spec"]["template"]["spec"]
            return bool(pod["containers"][0]["image"] == image)

        await eventually(back)


async def test_a_leader_that_lost_its_lease_ends_and_the_next_one_raises_the_fleet_version(world: World) -> None:
    with pytest.raises(LostLeadershipError, match="another operator"):
        await _lose_the_lease(world)
    term = (await world.fleet("chat"))["version"][0]
    async with world.operator("operator-b") as second:

        async def taken() -> bool:
            return second._election.leadership is not None

        await eventually(taken)
        await world.put(a_serving("chat", world.namespace, kvTransfer={"bidirectional": {"ttlSeconds": 60}}))

        async def raised() -> bool:
            fleet = await world.fleet("chat")
            return bool(fleet["policy"]["ttlSeconds"] == 60 and fleet["version"][0] > term)

        await eventually(raised)


async def _lose_the_lease(world: World) -> None:
    async with world.operator("operator-a"):
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")

        async def taken_away() -> bool:
            lease = await world.client.get(LEASES, world.namespace, "duplex-operator")
            assert lease["spec"]["holderIdentity"] == "operator-a"
            lease["spec"]["holderIdentity"] = "nobody"
            try:
                await world.client.replace(lease, LEASES)
            except ConflictError:  # the leader renewed it in between
                return False
            return True

        await eventually(taken_away)
        await asyncio.sleep(5)
        lease = await world.client.get(LEASES, world.namespace, "duplex-operator")
        assert lease["spec"]["holderIdentity"] == "nobody"  # it did not take it back


async def _holder(world: World) -> str:
    try:
        lease = await world.client.get(LEASES, world.namespace, "duplex-operator")
    except NotFoundError:
        return "nobody"
    return str(lease["spec"]["holderIdentity"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_process_that_is_told_to_end_gives_its_lease_up_and_ends_well(
    world: World, control_plane: ControlPlane, number: signal.Signals
) -> None:
    command = ["-m", "duplex_operator", "run", "--router-image=r:1", "--connector-image=c:1", "--health-port=0"]
    places = [f"--namespace={world.namespace}", f"--lease-namespace={world.namespace}"]
    kubeconfig = f"--kubeconfig={control_plane.kubeconfig}"
    process = await asyncio.create_subprocess_exec(sys.executable, *command, *places, kubeconfig)
    try:
        await world.put(a_serving("chat", world.namespace))

        async def served() -> bool:  # kopf runs by then
            return bool((await world.serving("chat")).get("status"))

        await eventually(served)
        assert await _holder(world) not in {"", "nobody"}
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 30) == 0
        assert await _holder(world) == ""
    finally:
        if process.returncode is None:
            process.kill()


async def test_two_operators_one_namespace_one_writer(world: World, control_plane: ControlPlane) -> None:
    async with world.operator("operator-a") as first, world.second_operator("operator-b") as second:

        async def one_leads() -> bool:
            return (first._election.leadership is None) != (second._election.leadership is None)

        await eventually(one_leads)
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
        assert await one_leads()


async def test_who_stands_by_sees_all_children_and_does_nothing_until_it_leads(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
    lease = await world.client.get(LEASES, world.namespace, "duplex-operator")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    lease["spec"] |= {"holderIdentity": "somebody", "leaseDurationSeconds": 3600, "renewTime": now}
    lease = await world.client.replace(lease, LEASES)
    async with world.operator("operator-b") as host:

        async def known() -> bool:
            return len(host._children.of((world.namespace, "chat"))) > 5

        await eventually(known)
        await world.put(a_serving("code", world.namespace))
        await asyncio.sleep(1)
        assert await world.names(CONFIG_MAPS, "code") == set()
        assert host.queue.depth == 0
        lease["spec"]["holderIdentity"] = ""
        await world.client.replace(lease, LEASES)
        await world.rolled_out("code")


async def test_an_operator_killed_at_any_write_leaves_what_the_next_one_finishes(
    world: World, control_plane: ControlPlane
) -> None:
    """Each life of the operator dies at its next write, one write further on; the last one is left alone."""
    await world.put(a_serving("chat", world.namespace))
    for life in range(1, 14):
        await _a_life_of(world, control_plane.kubeconfig, writes=life % 4 + 1, identity=f"operator-{life}")
    async with world.operator("operator-last"):
        await world.rolled_out("chat")
        assert len(await world.engines("chat")) == 2


async def _a_life_of(world: World, kubeconfig: Path, *, writes: int, identity: str) -> None:
    class Killed(BaseException):
        pass

    left = writes

    def guard() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    async with await connect(kubeconfig, user_agent="duplex-operator") as own:
        host = world.host(own, identity)
        watching = asyncio.create_task(host.watch())
        leading = asyncio.create_task(host.lead(_Fenced(guard)))
        await asyncio.wait({leading}, timeout=20)
        for task in (leading, watching):
            task.cancel()
        await asyncio.wait({leading, watching})


class _Fenced:
    """A leadership that ends in the middle."""

    term = 1

    def __init__(self, check: object) -> None:
        self.check = check
