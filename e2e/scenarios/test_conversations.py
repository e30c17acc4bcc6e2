"""Conversations through a serving: reuse where it may be, right answers everywhere."""

from __future__ import annotations

import time

import pytest

from duplex_lab.cluster import Cluster
from harness.talk import finish, start, talk

from .conftest import Apply, MakeTalker


def test_quickstart(cluster: Cluster, apply_serving: Apply, talker: MakeTalker) -> None:
    """The example becomes pods, and a conversation's KV comes back to prefill from the second turn on."""
    serving = apply_serving()
    talks = talker(serving)
    script = talks.script(turns=4)
    turns = talk(cluster, script)
    talks.check(turns, script)
    assert turns[0].reuse == "miss"
    assert all(turn.pulled_tokens for turn in turns[1:])
    assert all(turn.reuse in {"full", "partial"} for turn in turns[1:])
    columns, values = serving.kubectl("get", "dsv", serving.name).splitlines()
    assert columns.split() == [
        "NAME", "MODEL", "PREFILL", "DECODE", "ROUTER", "TRANSPORT", "REUSE", "HELD", "READY", "AGE",
    ]  # fmt: skip
    assert "1/1" in values
    assert "True" in values


def test_two_conversations_interleaved(cluster: Cluster, apply_serving: Apply, talker: MakeTalker) -> None:
    """Two conversations at the same time each get their own KV back."""
    talks = talker(apply_serving())
    scripts = [talks.script(turns=4, pause_seconds=0.2) for _ in range(2)]
    running = [start(cluster, script) for script in scripts]
    for script, process in zip(scripts, running, strict=True):
        turns = finish(process, script)
        talks.check(turns, script)
        assert all(turn.pulled_tokens for turn in turns[1:])


def test_a_turn_after_the_ttl(cluster: Cluster, apply_serving: Apply, talker: MakeTalker) -> None:
    """A turn that comes after the hold has lapsed is computed, rightly, and decode has let its blocks go."""
    serving = apply_serving({"spec": {"kvTransfer": {"bidirectional": {"ttlSeconds": 8}}}})
    talks = talker(serving)
    script = talks.script(turns=2, pause_seconds=10)
    turns = talk(cluster, script)
    talks.check(turns, script)
    assert not turns[1].pulled_tokens
    assert turns[1].computed_tokens == turns[1].prompt_tokens


@pytest.mark.parametrize("edit", ["regenerate", "edit"])
def test_changed_history_reuses_what_is_still_true(
    cluster: Cluster, apply_serving: Apply, talker: MakeTalker, edit: str
) -> None:
    """After a regenerated or edited turn P pulls the part that still holds and computes the rest, rightly."""
    talks = talker(apply_serving())
    script = talks.script(turns=4, first_words=600, next_words=200, edits={"3": edit})
    turns = talk(cluster, script)
    talks.check(turns, script)
    changed = turns[2]
    assert changed.pulled_tokens
    assert changed.pulled_tokens < changed.prompt_tokens
    assert turns[3].pulled_tokens


def test_stripped_thinking(cluster: Cluster, apply_serving: Apply, talker: MakeTalker) -> None:
    """With a template that drops old thinking, the history up to the last reply is still reused."""
    arguments = ["--sim-profile=instant", "--sim-template=strips-thinking"]
    talks = talker(apply_serving({"spec": {"engine": {"args": arguments}}}))
    script = talks.script(turns=3, first_words=600, strip_thinking=True, max_tokens=48)
    turns = talk(cluster, script)
    talks.check(turns, script)
    assert all(turn.reuse == "partial" for turn in turns[1:]), turns


def test_ttl_and_threshold_act_live(cluster: Cluster, apply_serving: Apply, talker: MakeTalker) -> None:
    """Edits of TTL and threshold act on the next turn, within two seconds, and no pod restarts."""
    serving = apply_serving()
    talks = talker(serving)
    before = {pod["metadata"]["uid"] for pod in serving.list("pods")}

    serving.patch({"kvTransfer": {"bidirectional": {"recomputeThresholdTokens": 100000}}})
    time.sleep(2)
    script = talks.script(turns=2)
    turns = talk(cluster, script)
    talks.check(turns, script)
    assert not turns[1].pulled_tokens

    serving.patch({"kvTransfer": {"bidirectional": {"recomputeThresholdTokens": 0, "ttlSeconds": 7}}})
    time.sleep(2)
    script = talks.script(turns=2)
    turns = talk(cluster, script)
    talks.check(turns, script)
    assert turns[1].pulled_tokens

    script = talks.script(turns=2, pause_seconds=9)
    turns = talk(cluster, script)
    talks.check(turns, script)
    assert not turns[1].pulled_tokens
    assert {pod["metadata"]["uid"] for pod in serving.list("pods")} >= before
