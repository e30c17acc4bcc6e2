"""What happens to a serving when things die, change or are wrong."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from duplex_lab.cluster import Cluster
from harness.conversation import parse_turns
from harness.installation import SYSTEM_NAMESPACE
from harness.serving import Serving
from harness.talk import finish, start, talk
from harness.tally import Tally

from .conftest import READY_SECONDS, Apply, MakeTalker

CHILD_KINDS = "deployments,services,configmaps,serviceaccounts,roles,rolebindings,pods"


def kill(serving: Serving, role: str) -> str:
    """Delete the role's pod at once, as a node that dies would, and return its name."""
    name = str(serving.list("pods", role=role)[0]["metadata"]["name"])
    serving.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
    return name


def test_engines_killed_between_turns(cluster: Cluster, apply_serving: Apply, talker: MakeTalker) -> None:
    """A conversation goes on over the death of its decode and its prefill engine; only its KV is lost."""
    serving = apply_serving()
    talks = talker(serving)
    for role in ("decode", "prefill"):
        script = talks.script(turns=4, pause_seconds=15)
        process = start(cluster, script)
        if process.stdout is None:
            raise AssertionError("the conversation has no output")
        first = process.stdout.readline()
        killed = kill(serving, role)
        talks.tally.kills += 1

        def replaced(killed: str = killed, role: str = role) -> bool | None:
            pods = [pod for pod in serving.list("pods", role=role) if pod["metadata"]["name"] != killed]
            ready = [c for pod in pods for c in pod["status"].get("conditions", []) if c["type"] == "Ready"]
            return True if ready and all(c["status"] == "True" for c in ready) else None

        serving.wait(replaced, seconds=60, what=f"new {role} pod")
        turns = [*parse_turns(first), *finish(process, script)]
        talks.check(turns, script)
        assert turns[-1].pulled_tokens, "reuse comes back after the engine does"


def test_operator_killed_mid_apply(cluster: Cluster, apply_serving: Apply, talker: MakeTalker, tally: Tally) -> None:
    """Both operator replicas die while a serving is being made; the next leader finishes it, once."""
    serving = apply_serving(ready=False)
    cluster.kubectl("-n", SYSTEM_NAMESPACE, "delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")
    tally.kills += 1
    serving.wait_ready(seconds=READY_SECONDS)
    assert len(serving.list("deployments", role="prefill")) == 1
    assert len(serving.list("deployments", role="decode")) == 1
    talks = talker(serving)
    script = talks.script(turns=2)
    talks.check(talk(cluster, script), script)


def test_deleted_serving_leaves_nothing(cluster: Cluster, apply_serving: Apply, talker: MakeTalker) -> None:
    """Deleting one serving removes all of it and nothing of its neighbour."""
    neighbour, serving = apply_serving(name="neighbour"), apply_serving(name="gone")
    serving.kubectl("delete", "dsv", "gone")

    def empty() -> bool | None:
        return True if not serving.list(CHILD_KINDS) else None

    serving.wait(empty, seconds=120, what="end of all children")
    talks = talker(neighbour)
    script = talks.script(turns=2)
    talks.check(talk(cluster, script), script)


def test_a_deleted_child_comes_back(apply_serving: Apply) -> None:
    """Whatever is deleted by hand is there again."""
    serving = apply_serving()
    for kind in ("deployments", "services", "configmaps"):
        before = {item["metadata"]["name"]: item["metadata"]["uid"] for item in serving.list(kind)}
        assert before, kind
        serving.kubectl("delete", kind, "-l", f"duplex.dev/serving={serving.name}", "--wait=false")

        def back(kind: str = kind, before: dict[str, str] = before) -> bool | None:
            now = {item["metadata"]["name"]: item["metadata"]["uid"] for item in serving.list(kind)}
            fresh = now.keys() >= before.keys() and not set(now.values()) & set(before.values())
            return True if fresh else None

        serving.wait(back, seconds=60, what=f"{kind} back")


def test_a_bad_image_keeps_the_last_good_pair(cluster: Cluster, apply_serving: Apply, talker: MakeTalker) -> None:
    """An image that cannot be pulled is named in the status, and the old pair goes on serving."""
    serving = apply_serving()
    talks = talker(serving)
    serving.patch({"engine": {"image": "duplex.local/no-such-image:dev"}})

    def named() -> bool | None:
        conditions = serving.get()["status"]["conditions"]
        return True if any(c["reason"] == "ImagePull" for c in conditions) else None

    serving.wait(named, seconds=90, what="condition with reason ImagePull")
    script = talks.script(turns=2)
    turns = talk(cluster, script)
    talks.check(turns, script)
    assert turns[1].pulled_tokens


def test_engines_that_cannot_start(cluster: Cluster, apply_serving: Apply, talker: MakeTalker) -> None:
    """A serving whose engines crash says why in the pod's own words, and its neighbour does not notice."""
    neighbour = apply_serving(name="neighbour")
    sick = apply_serving({"spec": {"engine": {"args": ["--sim-profile=no-such-profile"]}}}, name="sick", ready=False)

    def said() -> bool | None:
        condition = sick.condition("Ready")
        told = condition.get("status") == "False" and condition.get("reason") == "CrashLoop"
        return True if told and "no-such-profile" in condition.get("message", "") else None

    sick.wait(said, seconds=120, what="Ready=False with the engine's own last words")
    talks = talker(neighbour)
    script = talks.script(turns=2)
    talks.check(talk(cluster, script), script)


def test_nothing_stays_pinned(cluster: Cluster, apply_serving: Apply, talker: MakeTalker) -> None:
    """Once the holds of finished conversations may no longer be renewed, the engines hold no block for anyone."""
    reuse = {"ttlSeconds": 10, "maxHoldSeconds": 20}
    serving = apply_serving({"spec": {"kvTransfer": {"bidirectional": reuse}}})
    talks = talker(serving)
    script = talks.script(turns=3)
    talks.check(talk(cluster, script), script)

    def state(role: str) -> dict[str, Any]:
        address = serving.list("pods", role=role)[0]["status"]["podIP"]
        command = ["curl", "-sf", f"http://{address}:8000/sim/state"]
        answer = cluster.run_in_network(command, check=True, capture_output=True, text=True)
        found: dict[str, Any] = json.loads(answer.stdout)
        return found

    def freed(role: str) -> dict[str, Any] | None:
        now = state(role)
        return now if now["holds"] == [] and now["blocks"]["used"] == 0 else None

    for role in ("prefill", "decode"):
        # Twice the longest hold, for a machine that is busy.
        last = serving.wait(partial(freed, role), seconds=40, what=f"free {role} engine")
        assert last["corruptAnswers"] == 0, (role, last)
