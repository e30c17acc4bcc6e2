"""Two engines that cannot reach each other any more: no turn fails, one side is restarted, and reuse comes back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duplex_lab import faults
from duplex_lab.local_cluster import LocalCluster
from harness.conversation import Turn
from harness.installation import ROOT
from harness.serving import Serving, merged, read_manifest
from harness.talk import finish, start, talk

from .conftest import Apply, MakeTalker, Talker

VLLM = ROOT / "examples/quickstart-vllm.yaml"
ENGINE_IMAGE = "engine-cpu"


def prefill_of(lab: LocalCluster, serving: Serving, turn: Turn) -> str:
    """Return the name of the prefill pod that a turn went to, as its router explains it."""
    (router,) = serving.addresses("router").values()
    asked = ["curl", "-sf", f"http://{router}:9100/explain/{turn.request_id}"]
    explained = json.loads(lab.run_in_network(asked, check=True, capture_output=True, text=True).stdout)
    return str(explained["prefill"])


def hold_talks(lab: LocalCluster, talks: Talker, *, turns: int, count: int = 1) -> list[Turn]:
    """Hold so many conversations at once, check them, and return their turns."""
    scripts = [talks.script(turns=turns, pause_seconds=0.2) for _ in range(count)]
    found = []
    for script, process in [(script, start(lab, script)) for script in scripts]:
        each = finish(process, script)
        talks.check(each, script)
        found += each
    return found


def cut_and_heal(lab: LocalCluster, serving: Serving, talks: Talker, *, patience: float) -> None:
    """Cut one of two prefill engines off from the decode engine for good, and see it replaced."""
    (decode,) = serving.addresses("decode").values()
    before = serving.addresses("prefill")
    script = talks.script(turns=1)
    cut_off = prefill_of(lab, serving, talk(lab, script)[0])
    faults.cut_pair(lab, f"{before[cut_off]},{decode}")

    def stale() -> bool | None:
        hold_talks(lab, talks, turns=2, count=2)  # turns that use the pair notice it
        return True if serving.condition("TransportVerified").get("reason") == "PeerStale" else None

    serving.wait(stale, seconds=patience, what="condition with reason PeerStale")

    def healed() -> dict[str, Any] | None:
        hold_talks(lab, talks, turns=2)
        found: dict[str, Any] | None = serving.get()["status"].get("healing")
        return found

    healing = serving.wait(healed, seconds=2 * patience, what="restart of one side")
    assert (healing["restarts"], healing["pod"]) == (1, cut_off)

    def verified() -> bool | None:
        now = serving.addresses("prefill")
        done = len(now) == len(before) and cut_off not in now
        return True if done and serving.condition("TransportVerified").get("status") == "True" else None

    serving.wait(verified, seconds=2 * patience, what="verified transport between all pairs")
    assert hold_talks(lab, talks, turns=3)[-1].pulled_tokens


def test_a_pair_that_cannot_reach_each_other_heals(lab: LocalCluster, apply_serving: Apply, talker: MakeTalker) -> None:
    """Simulated engines."""
    serving = apply_serving({"spec": {"prefill": {"replicas": 2}}})
    try:
        cut_and_heal(lab, serving, talker(serving), patience=120)
    finally:
        faults.heal(lab)


@pytest.mark.vllm
def test_a_pair_of_real_engines_heals(lab: LocalCluster, namespace: str, talker: MakeTalker) -> None:
    """Real vLLM with NixlConnector over UCX, whose reads hang until UCX notices."""
    lab.load_images([ENGINE_IMAGE])
    serving = Serving(lab, namespace, "real")
    changes = merged(lab.pod_additions(ENGINE_IMAGE), {"spec": {"prefill": {"replicas": 2}}})
    serving.apply(merged(read_manifest(VLLM), changes))
    serving.wait_ready(seconds=900)
    try:
        cut_and_heal(lab, serving, talker(serving), patience=300)
    finally:
        faults.heal(lab)
