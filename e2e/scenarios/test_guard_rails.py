"""What keeps a serving to itself: network policies, and rights that are enough and no more."""

from __future__ import annotations

import json

import pytest

from duplex_lab import audit
from duplex_lab.cluster import Cluster
from duplex_lab.local_cluster import LocalCluster
from harness.installation import SYSTEM_NAMESPACE
from harness.talk import talk

from .conftest import Apply, MakeTalker


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
    (engine,) = serving.addresses("decode").values()
    (router,) = serving.addresses("router").values()
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
