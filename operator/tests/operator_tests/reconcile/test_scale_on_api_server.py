"""Scaling on a real API server: the scale subresource, its modes, and evictions."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from duplex_kube.api import PODS, Selection
from duplex_lab.control_plane import ControlPlane
from duplex_operator.reconcile.kinds import SERVINGS

from .harness import World, a_serving, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).resolve().parents[4] / "examples/autoscaling"
ROLES_PATH = f"/apis/{SERVINGS.api_version}"


async def test_the_scale_of_a_role_is_kept_or_held_as_its_mode_says(world: World, control_plane: ControlPlane) -> None:
    def kubectl(*arguments: str) -> str:
        return control_plane.kubectl(*arguments, "--namespace", world.namespace).stdout

    async def engines(role: str, number: int) -> bool:
        found = [item["spec"]["replicas"] for key, item in (await world.engines("chat")).items() if key[0] == role]
        asked = kubectl("get", "dsr", f"chat-{role}", "-o", "jsonpath={.spec.replicas}")
        return found == [number] and asked == str(number)

    async with world.operator():
        external = {"instanceType": "cpu", "scaling": {"mode": "External", "maxReplicas": 3}}
        await world.put(a_serving("chat", world.namespace, decode=external))
        await world.rolled_out("chat")
        await eventually(lambda: engines("decode", 1))
        scale = json.loads(
            kubectl("get", "--raw", f"{ROLES_PATH}/namespaces/{world.namespace}/servingroles/chat-decode/scale")
        )
        assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (1, 1)
        assert scale["status"]["selector"] == "duplex.dev/serving=chat,duplex.dev/role=decode"
        for number in (3, 2):
            kubectl("scale", "dsr", "chat-decode", f"--replicas={number}")
            await eventually(lambda number=number: engines("decode", number))
            await world.rolled_out("chat")
        # An edit of the serving, which applies all children again, leaves it alone.
        reuse = {"bidirectional": {"ttlSeconds": 60}}
        await world.put(a_serving("chat", world.namespace, decode=external, kvTransfer=reuse))
        await world.rolled_out("chat")
        assert await engines("decode", 2)
        kubectl("scale", "dsr", "chat-prefill", "--replicas=3")
        await eventually(lambda: engines("prefill", 1))
        # From External back to Fixed the serving rules, and the other way its number stays.
        await world.put(a_serving("chat", world.namespace))
        await eventually(lambda: engines("decode", 1))
        await world.put(a_serving("chat", world.namespace, decode=external | {"replicas": 3}))
        await world.rolled_out("chat")
        assert await engines("decode", 1)
        table = kubectl("get", "dsr").splitlines()
        assert table[0].split() == ["NAME", "SERVING", "ROLE", "MODE", "ASKED", "WANTED", "READY", "AGE"]
        assert table[1].split()[:7] == ["chat-decode", "chat", "decode", "External", "1", "1", "1"]


async def test_the_clusters_own_autoscaler_finds_the_scale_of_a_role(world: World, control_plane: ControlPlane) -> None:
    """The HPA of the examples; its metrics need an adapter, which is not here."""
    external = {"instanceType": "cpu", "scaling": {"mode": "External", "minReplicas": 2, "maxReplicas": 16}}
    async with world.operator():
        await world.put(a_serving("chat", world.namespace, decode=external | {"replicas": 2}))
        await world.rolled_out("chat")
        _, hpa = yaml.safe_load_all((EXAMPLES / "hpa.yaml").read_text())
        hpa["metadata"]["namespace"] = world.namespace
        hpa["spec"]["scaleTargetRef"]["name"] = "chat-decode"
        control_plane.kubectl("apply", "-f", "-", input=json.dumps(hpa))

        async def found() -> bool:
            name = ("hpa", "qwen3-32b-decode", "--namespace", world.namespace)
            status = json.loads(control_plane.kubectl("get", *name, "-o", "json").stdout).get("status") or {}
            conditions = {one["type"]: (one["status"], one["reason"]) for one in status.get("conditions") or ()}
            able = conditions.get("AbleToScale") == ("True", "SucceededGetScale")
            return able and status["currentReplicas"] == 2

        await eventually(found)


@pytest.fixture
def other_node(control_plane: ControlPlane) -> Iterator[str]:
    """Give the cluster a second pretended node for one test."""
    node = json.loads(control_plane.kubectl("get", "node", "fake-0", "-o", "json").stdout)
    metadata = {key: node["metadata"][key] for key in ("labels", "annotations")}
    metadata["labels"] |= {"kubernetes.io/hostname": "other"}
    fresh = {"apiVersion": "v1", "kind": "Node", "metadata": metadata | {"name": "other"}, "status": node["status"]}
    control_plane.kubectl("apply", "-f", "-", input=json.dumps(fresh))
    control_plane.kubectl("wait", "--for=condition=Ready", "node/other", "--timeout=60s")
    yield "other"
    control_plane.kubectl("uncordon", "fake-0")
    control_plane.kubectl("delete", "node", "other", "--wait=false")


async def test_a_node_drain_waits_until_its_engines_are_replaced_and_emptied(
    world: World, control_plane: ControlPlane, other_node: str
) -> None:
    async def placed() -> dict[str, str]:
        found = await world.client.list(PODS, Selection(world.namespace, "duplex.dev/role in (prefill,decode)"))
        living = [pod for pod in found.items if "deletionTimestamp" not in pod["metadata"]]
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in living}

    async def pair() -> set[str]:
        """Return the roles of which routers may use an engine that is ready."""
        found = await world.client.list(PODS, Selection(world.namespace, "duplex.dev/role in (prefill,decode)"))
        draining = (await world.fleet("chat"))["draining"]
        return {
            pod["metadata"]["labels"]["duplex.dev/role"]
            for pod in found.items
            if pod["metadata"]["name"] not in draining
            and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())
        }

    control_plane.kubectl("cordon", other_node)
    async with world.operator(watch_nodes=True):
        await world.put(a_serving("chat", world.namespace, podDisruptionBudget={"enabled": True}))
        await world.rolled_out("chat")
        before = await placed()
        assert set(before.values()) == {"fake-0"}
        # Nobody is to take an engine from here while it has no place to go to.
        evict = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": next(iter(before))}})
        path = f"/api/v1/namespaces/{world.namespace}/pods/{next(iter(before))}/eviction"
        refused = control_plane.kubectl("create", "--raw", path, "-f", "-", input=evict, check=False)
        assert refused.returncode != 0
        assert "disruption budget" in refused.stderr
        control_plane.kubectl("uncordon", other_node)
        drain = (
            "drain", "fake-0", "--pod-selector=duplex.dev/serving=chat,duplex.dev/role in (prefill,decode)",
            "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=100s",
        )  # fmt: skip
        draining = asyncio.create_task(asyncio.to_thread(control_plane.kubectl, *drain))
        while not draining.done():
            assert await pair() == {"prefill", "decode"}
            await asyncio.sleep(0.2)
        await draining
        await world.rolled_out("chat")
        after = await placed()
        assert set(after.values()) == {other_node}
        assert len(after) == 2
        assert not set(after) & set(before)
        assert (await world.fleet("chat"))["draining"] == []
