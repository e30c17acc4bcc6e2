"""What a serving's owner does to it while people talk: new flags, pauses, other sizes, an operator that dies."""

from __future__ import annotations

from typing import Any

from duplex_lab.cluster import Cluster
from harness.crowd import Crowd
from harness.installation import SYSTEM_NAMESPACE
from harness.serving import Serving

from .conftest import READY_SECONDS, TWO_PAIRS, Apply, MakeTalker


def with_flag(value: str) -> dict[str, Any]:
    """Return a change that shapes both roles' engines."""
    return {"engine": {"env": [{"name": "ROLLED", "value": value}]}}


def revisions(serving: Serving) -> set[str]:
    """Return the revisions of which there are engine Deployments."""
    found = [each for role in ("prefill", "decode") for each in serving.list("deployments", role=role)]
    return {each["metadata"]["labels"]["duplex.dev/revision"] for each in found}


def rolled(serving: Serving, *, since: set[str], seconds: float = READY_SECONDS) -> None:
    """Wait until one revision is left, none of those of before."""

    def alone() -> bool | None:
        now = revisions(serving)
        return True if len(now) == 1 and not now & since else None

    serving.wait(alone, seconds=seconds, what="one new revision alone")


def test_a_rollout_without_a_spare_engine_fails_no_turn(apply_serving: Apply, talker: MakeTalker, crowd: Crowd) -> None:
    """Both roles are replaced in place, pair by pair, while conversations go on: each turn is answered right."""
    serving = apply_serving(TWO_PAIRS)
    serving.patch({"rollout": {"maxSurge": 0, "maxUnavailable": 1}})
    talks = talker(serving)
    before = revisions(serving)
    talks.begin(crowd)
    serving.patch(with_flag("yes"))
    rolled(serving, since=before)
    turns = talks.end(crowd)
    assert sum(bool(turn.pulled_tokens) for turn in turns) > len(turns) / 2, turns
    serving.wait_ready(seconds=READY_SECONDS)


def test_a_paused_rollout_stands_and_goes_back(apply_serving: Apply, talker: MakeTalker, crowd: Crowd) -> None:
    """A change under way is paused, the old flags are applied again, and the pods that never left serve on."""
    serving = apply_serving(TWO_PAIRS)
    talks = talker(serving)
    stood = {role: serving.staying(role) for role in ("prefill", "decode")}
    talks.begin(crowd)
    serving.patch(with_flag("wrong"))
    serving.wait(lambda: len(revisions(serving)) == 2 or None, seconds=60, what="a second revision")
    serving.patch({"rollout": {"paused": True}})

    def paused() -> bool | None:
        return True if serving.condition("Progressing").get("reason") == "RolloutPaused" else None

    serving.wait(paused, seconds=60, what="condition with reason RolloutPaused")
    serving.patch({"rollout": {"paused": False}, "engine": {"env": None}})
    serving.wait_ready(seconds=READY_SECONDS)
    turns = talks.end(crowd)
    serving.wait(lambda: len(revisions(serving)) == 1 or None, seconds=120, what="the old revision alone")
    assert {role: serving.staying(role) for role in stood} == stood
    assert all(turn.pulled_tokens for turn in turns if turn.turn > 1), "no engine was taken away"


def test_a_scale_down_takes_kv_along(apply_serving: Apply, talker: MakeTalker, crowd: Crowd) -> None:
    """One of two decode engines goes; what it held is pulled from it before, so that no turn starts anew."""
    serving = apply_serving({"spec": {"decode": {"replicas": 2, "drainSeconds": 60}}})
    talks = talker(serving)
    talks.begin(crowd)
    serving.patch({"decode": {"replicas": 1}})
    serving.wait(lambda: len(serving.staying("decode")) == 1 or None, seconds=120, what="one decode engine")
    turns = talks.end(crowd)
    assert all(turn.pulled_tokens for turn in turns if turn.turn > 1), [
        turn for turn in turns if not turn.pulled_tokens
    ]


def test_a_rollout_outlives_its_operator(
    cluster: Cluster, apply_serving: Apply, talker: MakeTalker, crowd: Crowd
) -> None:
    """The operator's replicas die again and again during a rollout; the next leader goes on where it stood."""
    serving = apply_serving(TWO_PAIRS)
    talks = talker(serving)
    before = revisions(serving)
    talks.begin(crowd)
    serving.patch(with_flag("yes"))
    for _ in range(3):
        crowd.listen(8)
        force = ("--all", "--grace-period=0", "--force", "--wait=false")
        cluster.kubectl("-n", SYSTEM_NAMESPACE, "delete", "pods", *force)
        talks.tally.kills += 1
    rolled(serving, since=before)
    talks.end(crowd)
    serving.wait_ready(seconds=READY_SECONDS)
    assert len(serving.staying("prefill")) == len(serving.staying("decode")) == 2
