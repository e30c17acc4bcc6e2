"""Scaling on a real API server: the scale subresource, its modes, and evictions."""

import json
from pathlib import Path

import pytest
import yaml

from duplex_lab.control_plane import ControlPlane
from duplex_operator.reconcile.kinds import SERVINGS

from .harness import World, a_serving, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]

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
