"""What keeps a serving whole and to itself: pairs that cannot reach each other, strangers, rights."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from duplex_lab import audit, faults
from duplex_lab.cluster import Cluster
from duplex_lab.local_cluster import LocalCluster
from harness.conversation import Turn
from harness.installation import SYSTEM_NAMESPACE
from harness.serving import Serving
from harness.talk import finish, start, talk

from .conftest import Apply, Talker

MakeTalker = Callable[[Serving], Talker]


@pytest.fixture
def lab(cluster: Cluster) -> LocalCluster:
    """Give the local lab; what is tested here needs to reach into its nodes."""
    if not isinstance(cluster, LocalCluster):
        pytest.fail("this scenario needs the local lab: leave CLUSTER unset, or deselect it")
    return cluster


def addresses(serving: Serving, role: str) -> dict[str, str]:
    """Return the addresses of a role's pods by name, those on their way out left aside."""
    return {
        pod["metadata"]["name"]: pod["status"]["podIP"]
        for pod in serving.list("pods", role=role)
        if "deletionTimestamp" not in pod["metadata"] and "podIP" in pod["status"]
    }


def prefill_of(lab: LocalCluster, serving: Serving, turn: Turn) -> str:
    """Return the name of the prefill pod that a turn went to, as its router explains it."""
    (router,) = addresses(serving, "router").values()
    asked = ["curl", "-sf", f"http://{router}:9100/explain/{turn.request_id}"]
    uid = json.loads(lab.run_in_network(asked, check=True, capture_output=True, text=True).stdout)["prefill"]
    pods = serving.list("pods", role="prefill")
    return next(str(pod["metadata"]["name"]) for pod in pods if pod["metadata"]["uid"] == uid)


def test_a_pair_that_cannot_reach_each_other_heals(lab: LocalCluster, apply_serving: Apply, talker: MakeTalker) -> None:
    """Two engines are cut off from each other for good: no turn fails, one side is restarted, and reuse is back."""
    serving = apply_serving({"spec": {"prefill": {"replicas": 2}}})
    talks = talker(serving)
    (decode,) = addresses(serving, "decode").values()
    before = addresses(serving, "prefill")
    script = talks.script(turns=1)
    (turn,) = talk(lab, script)
    cut_off = prefill_of(lab, serving, turn)
    faults.cut_pair(lab, f"{before[cut_off]},{decode}")
    try:

        def stale() -> bool | None:
            # The pair is noticed by turns that use it.
            scripts = [talks.script(turns=2, pause_seconds=0.2) for _ in range(2)]
            for script, process in [(script, start(lab, script)) for script in scripts]:
                talks.check(finish(process, script), script)
            return True if serving.condition("TransportVerified").get("reason") == "PeerStale" else None

        serving.wait(stale, seconds=120, what="condition with reason PeerStale")

        def healed() -> dict[str, Any] | None:
            script = talks.script(turns=2)
            talks.check(talk(lab, script), script)
            found: dict[str, Any] | None = serving.get()["status"].get("healing")
            return found

        healing = serving.wait(healed, seconds=240, what="restart of one side")
        assert (healing["restarts"], healing["pod"]) == (1, cut_off)

        def verified() -> bool | None:
            now = addresses(serving, "prefill")
            done = len(now) == len(before) and cut_off not in now
            return True if done and serving.condition("TransportVerified").get("status") == "True" else None

        serving.wait(verified, seconds=120, what="verified transport between all pairs")
        script = talks.script(turns=3)
        turns = talk(lab, script)
        talks.check(turns, script)
        assert turns[-1].pulled_tokens
    finally:
        faults.heal(lab)


def reaches(cluster: Cluster, namespace: str, url: str) -> bool:
    """Tell whether a pod of that namespace that belongs to nothing gets any answer."""
    command = ["exec", "stranger", "--", "python3", "-c", _ASK, url]
    return cluster.kubectl("-n", namespace, *command, check=False).returncode == 0


_ASK = """
import socket, sys
host, _, port = sys.argv[1].rpartition(":")
socket.create_connection((host, int(port)), timeout=3).close()
"""


def start_stranger(cluster: Cluster, namespace: str) -> None:
    """Start a pod that idles and has a Python."""
    container = {
        "name": "idle",
        "image": cluster.image_reference("simulator"),
        "command": ["python3", "-c", "import time; time.sleep(3600)"],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "namespace": namespace},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    cluster.kubectl("apply", "-f", "-", input=json.dumps(pod))
    cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/stranger", "--timeout=120s")


@pytest.mark.usefixtures("lab")
def test_network_policies_keep_strangers_out(
    cluster: Cluster, namespace: str, apply_serving: Apply, talker: MakeTalker
) -> None:
    """Before the policies a stranger reaches every port; with them only the router's API; turns and reuse go on."""
    serving = apply_serving()
    talks = talker(serving)
    start_stranger(cluster, namespace)
    (engine,) = addresses(serving, "decode").values()
    (router,) = addresses(serving, "router").values()
    closed = [f"{engine}:8000", f"{engine}:5600", f"{router}:9100"]
    assert all(reaches(cluster, namespace, each) for each in closed)
    serving.patch({"networkPolicy": {"enabled": True}})

    def shut() -> bool | None:
        return None if any(reaches(cluster, namespace, each) for each in closed) else True

    serving.wait(shut, seconds=60, what="closed ports")
    assert reaches(cluster, namespace, f"{router}:8000")
    script = talks.script(turns=3)
    turns = talk(cluster, script)
    talks.check(turns, script)
    assert turns[-1].pulled_tokens
    generation = serving.get()["metadata"]["generation"]

    def settled() -> bool | None:
        # The operator reaches the router's admin port: what it reads there is new.
        now = serving.get()
        ready = next(one for one in now["status"]["conditions"] if one["type"] == "Ready")
        told = now["status"]["reuse"]["turns"] >= len(turns)
        return True if told and ready["status"] == "True" and ready["observedGeneration"] == generation else None

    serving.wait(settled, seconds=60, what="Ready with the newest turns")


def test_nothing_was_asked_that_the_roles_do_not_allow(lab: LocalCluster, apply_serving: Apply) -> None:
    """Whatever ran before in this run ran under the chart's and the operator's own roles: no request was refused."""
    apply_serving()
    accounts = f"system:serviceaccount:{SYSTEM_NAMESPACE}:"
    made = list(audit.requests(lab.control_plane().audit_log))
    operators = [request for request in made if request.user.startswith(accounts)]
    routers = [request for request in made if request.user.endswith("-router")]
    assert operators
    assert routers
    assert [request for request in [*operators, *routers] if request.forbidden] == []
    assert [request for request in made if request.resource == "secrets"] == []
