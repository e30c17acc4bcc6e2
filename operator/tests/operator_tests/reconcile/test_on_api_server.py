"""The operator against a real API server, its controllers and its garbage collector."""

import asyncio
import time

import pytest

from duplex_kube.api import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    Selection,
)
from duplex_operator.reconcile.kinds import CHILDREN, KEPT, SERVINGS

from .harness import World, a_serving, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]


async def test_a_serving_becomes_its_children_and_serves(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace, prefill={"instanceType": "cpu", "replicas": 2}))
        await world.rolled_out("chat")
        obj = await world.serving("chat")
        status = obj["status"]
        revision = status["updateRevision"]
        engines = {f"chat-prefill-{revision}", f"chat-decode-{revision}"}
        assert await world.names(DEPLOYMENTS, "chat") == {*engines, "chat-router"}
        assert await world.names(SERVICES, "chat") == {*engines, "chat-router"}
        assert await world.names(CONFIG_MAPS, "chat") == {"chat-fleet"}
        assert await world.names(KEPT, "chat") == {f"chat-{revision}"}
        for resource in (SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS):
            assert await world.names(resource, "chat") == {"chat-router"}
        assert status["prefill"]["summary"] == "2/2"
        assert status["decode"]["summary"] == "1/1"
        assert status["router"]["summary"] == "1/1"
        assert status["reuse"]["summary"] == "71%"
        assert status["transport"] == {"backend": "UCX", "network": "tcp", "verified": True, "bytesMoved": 4096}
        assert status["revision"] == revision
        assert status["url"] == f"http://chat-router.{world.namespace}.svc.cluster.local:8000/v1"
        fleet = await world.fleet("chat")
        assert fleet["revisions"] == [
            {
                "name": revision,
                "weight": 100,
                "prefill": f"chat-prefill-{revision}",
                "decode": f"chat-decode-{revision}",
            }
        ]
        assert "finalizers" not in obj["metadata"]
        assert "annotations" not in obj["metadata"]
        managers = {entry["manager"] for entry in obj["metadata"]["managedFields"]}
        assert managers == {"user", "duplex-operator-status"}


async def test_a_deleted_child_comes_back(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
        for resource in CHILDREN:
            before = await world.names(resource, "chat")
            for name in before:
                await world.client.delete(resource, world.namespace, name)

            async def back(resource=resource, before=before) -> bool:  # noqa: ANN001 - bound as they are now
                return await world.names(resource, "chat") == before

            await eventually(back)
        await world.rolled_out("chat")


async def test_a_changed_child_is_changed_back(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
        (role, revision), deployment = next(iter((await world.engines("chat")).items()))
        deployment["spec"]["replicas"] = 5
        deployment["metadata"].pop("managedFields")
        await world.client.replace(deployment, DEPLOYMENTS)

        async def back() -> bool:
            return (await world.engines("chat"))[role, revision]["spec"]["replicas"] == 1

        await eventually(back)


async def test_deleting_the_serving_removes_everything(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
        await world.client.delete(SERVINGS, world.namespace, "chat")

        async def nothing_left() -> bool:
            return not any([await world.names(resource, "chat") for resource in (*CHILDREN, PODS)])

        await eventually(nothing_left, seconds=60)


async def test_a_settled_serving_is_not_written_to(world: World) -> None:
    async with world.operator() as host:
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
        await asyncio.sleep(1)
        before = await world.versions(*CHILDREN, serving="chat")
        version = (await world.serving("chat"))["metadata"]["resourceVersion"]
        writes = host.metrics.render()
        for _ in range(3):
            host.queue.add((world.namespace, "chat"))
            await asyncio.sleep(0.3)
        assert await world.versions(*CHILDREN, serving="chat") == before
        assert (await world.serving("chat"))["metadata"]["resourceVersion"] == version
        counted = [line for line in writes.splitlines() if line.startswith(b"duplex_operator_writes_total")]
        assert counted
        assert counted == [
            line for line in host.metrics.render().splitlines() if line.startswith(b"duplex_operator_writes_total")
        ]


async def test_editing_the_ttl_changes_the_fleet_and_nothing_else_within_two_seconds(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
        others = [resource for resource in CHILDREN if resource is not CONFIG_MAPS]
        before = await world.versions(*CHILDREN, serving="chat")
        version = (await world.fleet("chat"))["version"]
        reuse = {"bidirectional": {"ttlSeconds": 60, "recomputeThresholdTokens": 128}}
        await world.put(a_serving("chat", world.namespace, kvTransfer=reuse))

        async def written() -> bool:
            policy = (await world.fleet("chat"))["policy"]
            return (policy["ttlSeconds"], policy["recomputeThresholdTokens"]) == (60, 128)

        await eventually(written, seconds=2)
        await world.rolled_out("chat")
        assert (await world.fleet("chat"))["version"] == [version[0], version[1] + 1]
        after = await world.versions(*CHILDREN, serving="chat")
        same = {key: value for key, value in after.items() if key[0] != "ConfigMap"}
        assert same == {key: value for key, value in before.items() if key[0] != "ConfigMap"}
        assert len(same) >= len(others)


async def test_editing_the_image_rolls_both_roles_beside_the_old_ones(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
        old = (await world.serving("chat"))["status"]["revision"]
        world.routers.served = lambda revision: int(revision == old)  # the canary has not been through the new one
        engine = {"image": "duplex.local/simulator:next", "version": "0.33.0"}
        await world.put(a_serving("chat", world.namespace, engine=engine))

        async def both() -> bool:
            return {role for role, _ in await world.engines("chat")} == {"prefill", "decode"} and len(
                await world.engines("chat")
            ) == 4

        await eventually(both)
        await asyncio.sleep(4)
        fleet = {entry["name"]: entry["weight"] for entry in (await world.fleet("chat"))["revisions"]}
        new = next(name for name in fleet if name != old)
        assert fleet == {old: 100, new: 0}
        assert len(await world.engines("chat")) == 4
        assert await world.condition("chat", "Ready") == ("True", "Serving")
        assert (await world.condition("chat", "Reconciling"))[0] == "True"

        world.routers.served = lambda _revision: 1
        await world.rolled_out("chat")
        assert {revision for _, revision in await world.engines("chat")} == {new}
        assert await world.names(KEPT, "chat") == {f"chat-{new}"}
        assert (await world.serving("chat"))["status"]["revision"] == new


async def test_an_image_that_never_starts_takes_nothing_from_what_serves(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
        old = (await world.serving("chat"))["status"]["revision"]
        # No node of this type: the pods stay pending, as they would with an image that cannot be pulled.
        gpu = {"instanceType": "g6e.12xlarge"}
        await world.put(a_serving("chat", world.namespace, prefill=gpu, decode=gpu))

        async def told() -> bool:
            return await world.condition("chat", "PrefillReady") == ("False", "InsufficientCapacity")

        await eventually(told)
        await asyncio.sleep(4)
        assert {(role, old) for role in ("prefill", "decode")} <= (await world.engines("chat")).keys()
        assert (await world.engines("chat"))["prefill", old]["spec"]["replicas"] == 1
        fleet = {entry["name"]: entry["weight"] for entry in (await world.fleet("chat"))["revisions"]}
        assert fleet[old] == 100
        assert await world.condition("chat", "Ready") == ("True", "Serving")


async def test_one_side_of_a_pair_that_cannot_reach_each_other_is_restarted_once(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace, prefill={"instanceType": "cpu", "replicas": 2}))
        await world.rolled_out("chat")
        pods = (await world.client.list(PODS, Selection(world.namespace, "duplex.dev/serving=chat"))).items
        names: dict[str, list[str]] = {}
        for pod in pods:
            names.setdefault(pod["metadata"]["labels"]["duplex.dev/role"], []).append(pod["metadata"]["name"])
        sick, well = sorted(names["prefill"])
        pair = {"prefill": sick, "decode": names["decode"][0], "failures": 4}
        world.routers.broken = [{**pair, "since": time.time() - 3600}]

        async def restarted() -> bool:
            now = (await world.client.list(PODS, Selection(world.namespace, "duplex.dev/role=prefill"))).items
            left = {pod["metadata"]["name"] for pod in now if "deletionTimestamp" not in pod["metadata"]}
            return sick not in left and well in left and len(left) == 2

        await eventually(restarted)
        await world.rolled_out("chat")
        healing = (await world.serving("chat"))["status"]["healing"]
        assert (healing["restarts"], healing["pod"]) == (1, sick)
        # The network is still cut: what came in its place cannot reach decode either, and is left alone for now.
        now = (await world.client.list(PODS, Selection(world.namespace, "duplex.dev/role=prefill"))).items
        fresh = next(pod["metadata"]["name"] for pod in now if pod["metadata"]["name"] != well)
        world.routers.broken = [{**pair, "prefill": fresh, "since": time.time() - 3600}]

        async def told() -> bool:
            return await world.condition("chat", "TransportVerified") == ("False", "PeerStale")

        await eventually(told)
        await asyncio.sleep(4)
        assert (await world.serving("chat"))["status"]["healing"] == healing
        events = await world.client.list(EVENTS, Selection(world.namespace))
        reasons = [event["reason"] for event in events.items]
        assert reasons.count("EngineRestarted") == 1
        assert "PeerStale" in reasons


async def test_routers_that_do_not_acknowledge_hold_the_old_revision(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
        world.routers.deaf = True
        engine = {"image": "duplex.local/simulator:next", "version": "0.33.0"}
        await world.put(a_serving("chat", world.namespace, engine=engine))

        async def switched() -> bool:
            return (
                sorted(entry["weight"] for entry in (await world.fleet("chat"))["revisions"]) == [0, 100]
                and (await world.fleet("chat"))["revisions"][0]["weight"] == 100
            )

        await eventually(switched)
        await asyncio.sleep(4)
        assert len(await world.engines("chat")) == 4
        world.routers.deaf = False
        await world.rolled_out("chat")
        assert len(await world.engines("chat")) == 2


async def test_suspend_scales_to_nothing_and_keeps_the_object(world: World) -> None:
    async with world.operator():
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")
        await world.put(a_serving("chat", world.namespace, suspend=True))

        async def none() -> bool:
            deployments = await world.client.list(DEPLOYMENTS, Selection(world.namespace, "duplex.dev/serving=chat"))
            return [item["spec"]["replicas"] for item in deployments.items] == [0, 0, 0]

        await eventually(none)

        async def told() -> bool:
            return await world.condition("chat", "Ready") == ("False", "Suspended")

        await eventually(told)
        await world.put(a_serving("chat", world.namespace))
        await world.rolled_out("chat")


async def test_a_sick_serving_does_not_affect_another(world: World) -> None:
    async with world.operator():
        # Passes the CRD's rules; what is wrong with it only code can see.
        sick = a_serving("sick", world.namespace)
        sick["spec"]["prefill"]["podTemplate"] = {"spec": {"hostNetwork": True}}
        await world.put(sick)
        await world.put(a_serving("well", world.namespace))
        await world.rolled_out("well")

        async def told() -> bool:
            return await world.condition("sick", "Stalled") == ("True", "InvalidSpec")

        await eventually(told)
        conditions = (await world.serving("sick"))["status"]["conditions"]
        message = next(one["message"] for one in conditions if one["type"] == "Stalled")
        assert "spec.prefill.podTemplate" in message
        assert "remove it" in message
        assert await world.names(DEPLOYMENTS, "sick") == set()
        await world.put(a_serving("sick", world.namespace))
        await world.rolled_out("sick")


async def test_what_the_api_server_refuses_ends_in_stalled_with_its_words(world: World) -> None:
    async with world.operator():
        sick = a_serving("sick", world.namespace)
        sick["spec"]["prefill"]["podTemplate"] = {"spec": {"dnsPolicy": "Nonsense"}}
        await world.put(sick)

        async def told() -> bool:
            return await world.condition("sick", "Stalled") == ("True", "RefusedByAPIServer")

        await eventually(told)
        conditions = (await world.serving("sick"))["status"]["conditions"]
        assert "dnsPolicy" in next(one["message"] for one in conditions if one["type"] == "Stalled")


async def test_an_object_of_somebody_else_is_not_taken_over(world: World) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat-router", "namespace": world.namespace},
        "spec": {"ports": [{"port": 1}], "selector": {"a": "b"}},
    }
    before = await world.client.create(foreign, SERVICES)
    async with world.operator():
        await world.put(a_serving("chat", world.namespace))

        async def told() -> bool:
            return await world.condition("chat", "Stalled") == ("True", "RefusedByAPIServer")

        await eventually(told)
        after = await world.client.get(SERVICES, world.namespace, "chat-router")
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
