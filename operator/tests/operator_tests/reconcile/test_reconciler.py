"""The reconcile converges, from wherever it was interrupted, and then rests."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_kube.api import CONFIG_MAPS, EVENTS, SERVICES
from duplex_kube.errors import ConflictError, ForbiddenError, InvalidError, KubeError, TransientError
from duplex_operator.reconcile.kinds import SERVINGS
from operator_tests.fake_clock import FakeClock
from operator_tests.fake_kube import Cluster, FakeKube

from .inner import KEY, Inner, an_operator, content, make_ready, put, the_serving


def condition(cluster: Cluster, kind: str) -> tuple[str, str, str]:
    obj = cluster.objects[SERVINGS.plural, "n", "chat"]
    found = next((one for one in obj["status"]["conditions"] if one["type"] == kind), None)
    return (found["status"], found["reason"], found["message"]) if found else ("", "", "")


async def converge(inner: Inner, cluster: Cluster, rounds: int = 6) -> None:
    for _ in range(rounds):
        inner.clock.jump(20)
        await inner.reconcile()
        make_ready(cluster)


async def test_a_second_reconcile_writes_nothing() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving())
    async with an_operator(cluster, clock) as inner:
        await converge(inner, cluster)
        before = inner.writes()
        for _ in range(3):
            clock.jump(20)
            await inner.reconcile()
        assert inner.writes() == before


async def test_a_new_operator_settles_without_changing_anything() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving())
    async with an_operator(cluster, clock) as inner:
        await converge(inner, cluster)
    versions = {key: obj["metadata"]["resourceVersion"] for key, obj in cluster.objects.items()}
    async with an_operator(cluster, clock, term=2) as inner:
        await converge(inner, cluster)
        before = inner.writes()
        await inner.reconcile()
        assert inner.writes() == before
    assert {key: obj["metadata"]["resourceVersion"] for key, obj in cluster.objects.items()} == versions


async def test_a_fleet_write_that_the_watch_has_not_brought_yet_is_not_written_again_with_the_same_version() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving())
    async with an_operator(cluster, clock) as inner:
        await converge(inner, cluster)
        # From here on the watch of ConfigMaps is dead: the cache shows the first document for ever.
        cluster.before = refusing(TransientError("x"), "watch")
        cluster.break_watches(TransientError("cut"))
        seen = []
        for ttl in (60, 61, 62):
            await put(cluster, the_serving(kvTransfer={"bidirectional": {"ttlSeconds": ttl}}))
            await inner.reconcile()
            document = json.loads(cluster.objects["configmaps", "n", "chat-fleet"]["data"]["fleet.json"])
            assert document["policy"]["ttlSeconds"] == ttl
            seen.append(document["version"][1])
        assert len(set(seen)) == 3
        assert seen == sorted(seen)


def refusing(error: Exception, verb: str, plural: str | None = None) -> Callable[[str, str, str], None]:
    def before(asked: str, of: str, _name: str) -> None:
        if asked == verb and plural in (None, of):
            raise error

    return before


async def test_a_damaged_fleet_document_is_written_anew() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving())
    async with an_operator(cluster, clock) as inner:
        await converge(inner, cluster)
        good = cluster.objects["configmaps", "n", "chat-fleet"]["data"]
        broken = await inner.api.get(CONFIG_MAPS, "n", "chat-fleet")
        await inner.api.replace({**broken, "data": {"fleet.json": "{"}}, CONFIG_MAPS)
        await inner.reconcile()
        assert cluster.objects["configmaps", "n", "chat-fleet"]["data"] == good


@pytest.mark.parametrize("error", [TransientError("down"), ConflictError("409"), asyncio.CancelledError()])
async def test_interrupted_at_any_request_the_next_life_ends_in_the_same_state(error: BaseException) -> None:
    clock = FakeClock()
    undisturbed = Cluster()
    await put(undisturbed, the_serving())
    async with an_operator(undisturbed, clock) as inner:
        await converge(inner, undisturbed)
    expected = content(undisturbed)
    interrupted = 0
    for fail_at in range(1, 30):
        cluster = Cluster()
        await put(cluster, the_serving())
        async with an_operator(cluster, clock) as inner:
            cluster.before = failing_at(fail_at, error)
            try:
                await converge(inner, cluster)
            except type(error):
                interrupted += 1
        cluster.before = lambda *_: None
        async with an_operator(cluster, clock, term=2) as inner:
            await converge(inner, cluster)
        assert _without_owner(content(cluster)) == _without_owner(expected)
    assert interrupted >= 20


def failing_at(number: int, error: BaseException) -> Callable[[str, str, str], None]:
    left = [number]

    def before(verb: str, _plural: str, _name: str) -> None:
        if verb in {"watch", "list"}:
            return
        left[0] -= 1
        if left[0] == 0:
            raise error

    return before


def _without_owner(objects: dict[Any, Any]) -> dict[Any, Any]:
    text = json.dumps(sorted((list(key), value) for key, value in objects.items()), default=str, sort_keys=True)
    return {"text": re.sub(r"uid-\d+", "uid", text)}


ACTIONS = st.sampled_from(["edit", "reconcile", "ready", "delete", "restart"])

EDITS: list[dict[str, Any]] = [
    {},
    {"engine": {"image": "engine:0.32.0"}},
    {"decode": {"instanceType": "cpu", "replicas": 3}},
    {"kvTransfer": {"bidirectional": {"ttlSeconds": 60}}},
    {"suspend": True},
    {"podDisruptionBudget": {"enabled": True}},
]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(ACTIONS, st.integers(0, 5)), max_size=12))
def test_any_order_of_events_ends_in_the_state_that_the_last_spec_gives(events: list[tuple[str, int]]) -> None:
    asyncio.run(_play(events))


async def _play(events: list[tuple[str, int]]) -> None:
    clock, cluster, spec = FakeClock(), Cluster(), EDITS[0]
    await put(cluster, the_serving())
    lives = [event for event in events if event[0] == "restart"]
    remaining = list(events)
    for _ in range(len(lives) + 1):
        async with an_operator(cluster, clock) as inner:
            while remaining:
                action, which = remaining.pop(0)
                if action == "restart":
                    break
                spec = await _act(action, which, spec, inner, cluster)
    async with an_operator(cluster, clock) as inner:
        await converge(inner, cluster, rounds=10)
    direct = Cluster()
    await put(direct, the_serving(**spec))
    async with an_operator(direct, clock) as inner:
        await converge(inner, direct, rounds=10)
    assert _without_owner(content(cluster)) == _without_owner(content(direct))


async def _act(action: str, which: int, spec: dict[str, Any], inner: Inner, cluster: Cluster) -> dict[str, Any]:
    if action == "edit":
        spec = EDITS[which]
        await put(cluster, the_serving(**spec))
    elif action == "reconcile":
        inner.clock.jump(7)
        await inner.reconcile()
    elif action == "ready":
        make_ready(cluster)
    elif action == "delete":
        children = [key for key in sorted(cluster.objects) if key[0] not in {SERVINGS.plural, "events"}]
        if children:
            plural, namespace, name = children[which % len(children)]
            resource = next(one for one in inner.children.reflectors if one.resource.plural == plural).resource
            await inner.api.delete(resource, namespace, name)
    return spec


async def test_what_is_refused_is_stalled_with_the_servers_words_and_tried_again_slowly() -> None:
    for error, reason in (
        (InvalidError("spec.template: no"), "RefusedByAPIServer"),
        (ForbiddenError("exceeded quota: pods"), "Forbidden"),
    ):
        cluster, clock = Cluster(), FakeClock()
        await put(cluster, the_serving())
        async with an_operator(cluster, clock) as inner:
            cluster.before = refusing(error, "apply", "deployments")
            after = await inner.reconcile()
            assert condition(cluster, "Stalled") == ("True", reason, str(error))
            assert condition(cluster, "Reconciling") == ("", "", "")
            assert after is not None
            assert after >= 60
            cluster.before = lambda *_: None
            await converge(inner, cluster)
            assert condition(cluster, "Stalled") == ("", "", "")


async def test_a_transient_error_is_the_queues_to_repeat() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving())
    async with an_operator(cluster, clock) as inner:
        cluster.before = refusing(TransientError("down"), "apply")
        with pytest.raises(KubeError, match="down"):
            await inner.reconcile()


async def test_an_object_that_is_not_ours_is_left_alone() -> None:
    cluster, clock = Cluster(), FakeClock()
    foreign = {"metadata": {"name": "chat-router", "namespace": "n"}, "spec": {"ports": []}}
    await FakeKube(cluster).create(foreign, SERVICES)
    await put(cluster, the_serving())
    async with an_operator(cluster, clock) as inner:
        await inner.reconcile()
    assert cluster.objects["services", "n", "chat-router"]["spec"] == {"ports": []}
    assert "delete it, or give the serving another name" in condition(cluster, "Stalled")[2]


async def test_events_are_posted_on_transitions_and_not_again() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving())
    async with an_operator(cluster, clock) as inner:
        await converge(inner, cluster)
        posted = [obj["reason"] for key, obj in cluster.objects.items() if key[0] == EVENTS.plural]
        assert len(posted) == len(set(posted))
        assert "Progressing" in posted
        await converge(inner, cluster)
        assert len(posted) == sum(key[0] == EVENTS.plural for key in cluster.objects)


async def test_an_event_that_cannot_be_posted_costs_nothing() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving())
    async with an_operator(cluster, clock) as inner:
        cluster.before = refusing(ForbiddenError("no"), "create", EVENTS.plural)
        assert await inner.reconcile() == 3.0


async def test_a_deleted_serving_is_forgotten_and_one_that_is_going_is_left_alone() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving())
    async with an_operator(cluster, clock) as inner:
        await converge(inner, cluster)
        going = await inner.api.get(SERVINGS, "n", "chat")
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        await inner.api.replace(going, SERVINGS)
        before = inner.writes()
        assert await inner.reconcile() is None
        assert inner.writes() == before
        await inner.api.delete(SERVINGS, "n", "chat")
        assert await inner.reconcile() is None


async def test_children_of_a_former_life_are_not_taken_for_ours() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving())
    async with an_operator(cluster, clock) as inner:
        await converge(inner, cluster)
        await inner.api.delete(SERVINGS, "n", "chat")
        await put(cluster, the_serving())  # the garbage collector has not been there yet
        await inner.reconcile()
        assert "does not belong to this serving" in condition(cluster, "Stalled")[2]


async def test_only_the_object_that_was_seen_is_deleted() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving(podDisruptionBudget={"enabled": True}))
    async with an_operator(cluster, clock) as inner:
        await converge(inner, cluster)
        await put(cluster, the_serving())
        replaced = []

        def replace(verb: str, plural: str, name: str) -> None:
            """Somebody deletes the object and makes another of the same name, just before our delete arrives."""
            if verb == "delete" and plural == "poddisruptionbudgets" and name not in replaced:
                replaced.append(name)
                obj = cluster.objects[plural, "n", name]
                cluster.objects[plural, "n", name] = {**obj, "metadata": {**obj["metadata"], "uid": f"other-{name}"}}

        cluster.before = replace
        await inner.reconcile()
        left = [key[2] for key in cluster.objects if key[0] == "poddisruptionbudgets"]
        assert sorted(left) == sorted(replaced) == ["chat-decode", "chat-prefill"]


async def test_the_status_of_one_life_is_not_written_to_the_next() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving())
    async with an_operator(cluster, clock) as inner:

        def reborn(verb: str, _plural: str, _name: str) -> None:
            if verb == "apply_status":
                obj = cluster.objects[SERVINGS.plural, "n", "chat"]
                cluster.objects[SERVINGS.plural, "n", "chat"] = {**obj, "metadata": {**obj["metadata"], "uid": "new"}}

        cluster.before = reborn
        with pytest.raises(ConflictError):
            await inner.reconcile()
    assert "status" not in cluster.objects[SERVINGS.plural, "n", "chat"]


async def test_an_edit_that_the_answer_to_a_status_write_shows_is_worked_on_at_once() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving(decode={"instanceType": "cpu", "tensorParallelSize": 3}))
    async with an_operator(cluster, clock) as inner:
        edits = [the_serving()]

        def edited(verb: str, _plural: str, _name: str) -> None:
            if verb == "apply_status" and edits:
                key = (SERVINGS.plural, "n", "chat")
                metadata = cluster.objects[key]["metadata"]
                metadata = {**metadata, "generation": 2, "resourceVersion": str(int(metadata["resourceVersion"]) + 1)}
                cluster.objects[key] = {**cluster.objects[key], **edits.pop(), "metadata": metadata}

        cluster.before = edited
        assert await inner.reconcile() == 0.0
        after = await inner.reconcile()
        assert (edits, condition(cluster, "Stalled")) == ([], ("", "", ""))
        assert after


async def test_a_changed_child_or_pod_asks_for_its_serving() -> None:
    cluster, clock = Cluster(), FakeClock()
    await put(cluster, the_serving())
    async with an_operator(cluster, clock) as inner:
        await converge(inner, cluster)
        inner.asked.clear()
        await inner.api.delete(SERVICES, "n", "chat-router")
        await inner.look()
        assert inner.asked == [KEY]


async def test_an_object_of_a_newer_release_is_stalled_and_not_a_defect() -> None:
    cluster, clock = Cluster(), FakeClock()
    odd = the_serving()
    odd["spec"]["prefill"] = {"instanceType": 7}
    await put(cluster, odd)
    async with an_operator(cluster, clock) as inner:
        await inner.reconcile()
    status, reason, message = condition(cluster, "Stalled")
    assert (status, reason) == ("True", "InvalidSpec")
    assert "upgrade both" in message
