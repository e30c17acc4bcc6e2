"""Whole decisions: what is applied and deleted, and what the status says."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duplex_operator.api import Problem, Reason, Status
from duplex_operator.plan import KEPT_KIND, ChildRef, Observed, Plan, Pod, RoleObject, RouterStats, plan, plan_stalled
from duplex_operator.plan.decide import STEADY_SECONDS
from duplex_operator.plan.observed import Canary, Trouble
from duplex_operator.render import RenderContext

from .build import CONTEXT, engines, fleet, router, serving, serving_well, wanted

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def condition(decided: Plan, kind: str) -> tuple[str, str, str]:
    found = next((one for one in decided.status["conditions"] if one["type"] == kind), None)
    return (found["status"], found["reason"], found["message"]) if found else ("", "", "")


def settled(**changes: Any) -> Plan:
    target = wanted()
    return plan(target, serving_well(target.revision, **changes), NOW)


def kept_of(decided: Plan) -> tuple[dict[str, Any], ...]:
    keeper = next(obj for obj in decided.apply if obj["kind"] == KEPT_KIND)
    return tuple(keeper["data"]["engines"])


def test_a_new_serving_keeps_its_templates_and_applies_everything() -> None:
    decided = plan(wanted(), Observed(), NOW)
    kinds = [obj["kind"] for obj in decided.apply]
    assert kinds.count("Deployment") == 3
    assert kinds.count(KEPT_KIND) == 1
    assert {engine["metadata"]["name"] for engine in kept_of(decided)} == {
        obj["metadata"]["name"]
        for obj in decided.apply
        if obj["kind"] == "Deployment" and not obj["metadata"]["name"].endswith("router")
    }
    assert condition(decided, "Ready")[:2] == ("False", "WaitingForPods")
    assert condition(decided, "Reconciling")[0] == "True"
    assert decided.requeue_after == 3.0


def test_a_serving_that_serves_is_ready_and_looked_at_less_often() -> None:
    decided = settled()
    assert condition(decided, "Ready")[:2] == ("True", "Serving")
    assert condition(decided, "Progressing")[:2] == ("True", "RolledOut")
    assert condition(decided, "Reconciling") == ("", "", "")
    assert decided.requeue_after == STEADY_SECONDS


def test_ready_needs_a_token_and_not_only_pods() -> None:
    unserved = {"router-0": RouterStats(fleet_version=(1, 1))}
    assert condition(settled(stats=unserved), "Ready")[:2] == ("False", "WaitingForCanary")
    canaries = {wanted().revision: Canary(failures=1, message="prefill answered 500")}
    failed = {"router-0": RouterStats(fleet_version=(1, 1), canaries=canaries)}
    status, reason, message = condition(settled(stats=failed), "Ready")
    assert (status, reason) == ("False", "CanaryFailed")
    assert "prefill answered 500" in message


def test_routers_that_do_not_answer_the_operator_are_told_with_the_remedy() -> None:
    status, reason, message = condition(settled(stats={}), "Ready")
    assert (status, reason) == ("False", "WaitingForRouter")
    assert "9100" in message
    assert "NetworkPolicy" in message


def test_ready_ends_when_neither_clients_nor_the_canary_are_served_any_longer() -> None:
    revision = wanted().revision

    def told(failures: int, *others: RouterStats) -> tuple[str, str]:
        canaries = {revision: Canary(last_success=1.0, failures=failures, message="HTTP 502")}
        stats = RouterStats(fleet_version=(1, 1), served_tokens={revision: 5}, canaries=canaries)
        routers = {f"router-{number}": one for number, one in enumerate([stats, *others])}
        return condition(settled(stats=routers), "Ready")[:2]

    assert told(2) == ("True", "Serving")
    assert told(3) == ("False", "CanaryFailed")
    healthy = RouterStats(fleet_version=(1, 1), canaries={revision: Canary(last_success=1.0)})
    assert told(3, healthy) == ("True", "Serving"), "one router that reaches it is enough"


def test_the_status_is_one_that_the_api_accepts() -> None:
    decided = settled()
    parsed = Status.model_validate(decided.status)
    again = parsed.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert again == decided.status
    assert decided.status["prefill"]["summary"] == "1/1"
    assert decided.status["observedGeneration"] == 3


def test_an_upgraded_operator_restarts_no_engine() -> None:
    kept = kept_of(plan(wanted(), Observed(), NOW))
    upgraded = RenderContext(router_image="router:2", connector_image="connector:2", operator_version="0.2.0")
    target = wanted(context=upgraded)
    decided = plan(target, serving_well(target.revision, kept={target.revision: kept}), NOW)
    templates = {
        obj["metadata"]["name"]: obj["spec"]["template"] for obj in decided.apply if obj["kind"] == "Deployment"
    }
    for engine in kept:
        assert templates[engine["metadata"]["name"]] == engine["spec"]["template"]
    routers = templates["chat-router"]["spec"]["containers"]
    assert routers[0]["image"] == "router:2"
    assert not any(obj["kind"] == KEPT_KIND for obj in decided.apply)


def test_how_long_engines_drain_acts_on_what_runs_without_a_restart() -> None:
    kept = kept_of(plan(wanted(), Observed(), NOW))
    target = wanted(serving(decode={"instanceType": "cpu", "drainSeconds": 900}))
    assert target.revision == wanted().revision
    decided = plan(target, serving_well(target.revision, kept={target.revision: kept}), NOW)
    templates = {
        obj["metadata"]["name"]: obj["spec"]["template"] for obj in decided.apply if obj["kind"] == "Deployment"
    }
    for engine in kept:
        assert templates[engine["metadata"]["name"]] == engine["spec"]["template"]


def budgets(*, sees_nodes: bool = True, **rollout: int) -> dict[str, int]:
    two = {"instanceType": "cpu", "replicas": 2}
    of = serving(prefill=two, decode=two | {"replicas": 4}, rollout=rollout, podDisruptionBudget={"enabled": True})
    target = wanted(of)
    decided = plan(target, serving_well(target.revision, sees_nodes=sees_nodes), NOW)
    found = [obj for obj in decided.apply if obj["kind"] == "PodDisruptionBudget"]
    return {obj["metadata"]["name"]: obj["spec"]["maxUnavailable"] for obj in found}


def test_evictions_may_take_what_a_rollout_may_leave_missing() -> None:
    assert budgets() == {"chat-prefill": 0, "chat-decode": 0}
    assert budgets(maxSurge=0) == {"chat-prefill": 1, "chat-decode": 2}
    # An operator that does not see nodes cannot empty their engines: a budget of none would block every drain.
    assert budgets(sees_nodes=False) == {"chat-prefill": 1, "chat-decode": 1}


def test_an_autoscaler_that_asks_for_none_gets_rest() -> None:
    none = {"instanceType": "cpu", "scaling": {"mode": "External", "minReplicas": 0}}
    target = wanted(serving(prefill=none, decode=none))
    roles = {role: RoleObject(f"chat-{role}", role, 0) for role in ("prefill", "decode")}
    works = tuple(engines(target.revision, ready=0, replicas=0))
    decided = plan(target, serving_well(target.revision, roles=roles, workloads=works), NOW)
    assert condition(decided, "Ready")[:2] == ("False", "Suspended")
    assert condition(decided, "Reconciling") == ("", "", "")
    assert decided.requeue_after == STEADY_SECONDS


def test_replicas_change_on_a_running_revision() -> None:
    kept = kept_of(plan(wanted(), Observed(), NOW))
    target = wanted(serving(decode={"instanceType": "cpu", "replicas": 4}))
    decided = plan(target, serving_well(target.revision, kept={target.revision: kept}), NOW)
    sizes = {
        obj["metadata"]["labels"]["duplex.dev/role"]: obj["spec"]["replicas"]
        for obj in decided.apply
        if obj["kind"] == "Deployment"
    }
    assert sizes == {"prefill": 1, "decode": 4, "router": 1}


def test_an_old_revision_is_resized_from_what_was_kept_of_it() -> None:
    old = wanted(serving(engine={"image": "engine:0.32.0"}))
    new = wanted()
    kept = {old.revision: kept_of(plan(old, Observed(), NOW))}
    observed = serving_well(
        old.revision,
        kept=kept,
        workloads=(
            *engines(old.revision, ready=2, replicas=2),
            *engines(new.revision, ready=1, replicas=2, created="2026-02-02"),
        ),
        fleet=fleet({new.revision: 50, old.revision: 50}),
        stats={"router-0": RouterStats(fleet_version=(1, 1), served_tokens={new.revision: 1})},
    )
    two = serving(prefill={"instanceType": "cpu", "replicas": 2}, decode={"instanceType": "cpu", "replicas": 2})
    decided = plan(wanted(two), observed, NOW)
    resized = [obj for obj in decided.apply if obj["metadata"]["name"].endswith(old.revision)]
    assert [obj["spec"]["replicas"] for obj in resized if obj["kind"] == "Deployment"] == [1, 1]
    assert resized[0]["spec"]["template"]["spec"]["containers"][0]["image"] == "engine:0.32.0"
    assert condition(decided, "Ready")[:2] == ("True", "Serving")


def test_what_is_no_longer_wanted_is_deleted_and_what_an_old_revision_needs_is_not() -> None:
    target = wanted()
    children = (
        ChildRef("Service", f"chat-prefill-{target.revision}", "u", target.revision),
        ChildRef("ConfigMap", "chat-fleet", "u", ""),
        ChildRef("PodDisruptionBudget", "chat-prefill", "u", ""),
        ChildRef("Service", "chat-prefill-00000000", "u", "00000000"),
        ChildRef(KEPT_KIND, "chat-00000000", "u", "00000000"),
        ChildRef("Service", "chat-prefill-old", "u", "old"),
    )
    # The old revision serves; the one in between is gone but for its Service.
    observed = serving_well("old", children=children)
    assert [child.name for child in plan(target, observed, NOW).delete] == [
        "chat-00000000",
        "chat-prefill",
        "chat-prefill-00000000",
    ]


@pytest.mark.parametrize("reason", [Reason.CRASH_LOOP, Reason.IMAGE_PULL])
def test_engines_that_cannot_start_are_told_with_their_last_words(reason: Reason) -> None:
    target = wanted()
    pod = Pod(
        "d-1",
        "decode",
        target.revision,
        "",
        ready=False,
        terminating=False,
        trouble=Trouble(reason, "ValueError: no model"),
    )
    prefill, decode = engines(target.revision)
    observed = Observed(workloads=(prefill, replace(decode, ready=0)), router=router(), pods=(pod,))
    decided = plan(target, observed, NOW)
    for kind in ("Ready", "DecodeReady", "Progressing"):
        status, told, message = condition(decided, kind)
        assert (status, told) == ("False", reason.value)
        assert "ValueError: no model" in message
    assert condition(decided, "PrefillReady")[0] == "True"
    assert [event.reason for event in decided.events if event.warning] == [reason.value]


def test_pods_that_may_not_be_created_are_told() -> None:
    target = wanted()
    prefill, decode = engines(target.revision, ready=0)
    observed = Observed(workloads=(replace(prefill, refused="exceeded quota: gpus"), decode))
    status, reason, message = condition(plan(target, observed, NOW), "PrefillReady")
    assert (status, reason) == ("False", "Forbidden")
    assert "exceeded quota: gpus" in message


def test_no_progress_within_the_deadline_stalls_and_is_told() -> None:
    target = wanted()
    observed = Observed(workloads=tuple(replace(work, ready=0) for work in engines(target.revision)))
    begun = plan(target, observed, NOW)
    assert begun.status["rollout"]["lastProgressTime"] == "2026-01-01T00:00:00Z"
    assert condition(begun, "Progressing")[:2] == ("True", "Progressing")
    later = plan(target, replace(observed, status=begun.status), NOW + timedelta(seconds=3600))
    assert later.status["rollout"] == begun.status["rollout"]
    for kind, status in (("Progressing", "False"), ("Stalled", "True")):
        assert condition(later, kind)[:2] == (status, "ProgressDeadlineExceeded")
    assert condition(later, "Reconciling")[0] == ""
    grown = replace(observed, workloads=tuple(engines(target.revision)), status=later.status)
    again = plan(target, grown, NOW + timedelta(seconds=3601))
    assert condition(again, "Stalled")[0] == ""
    assert condition(again, "Progressing")[:2] == ("True", "Progressing")


def test_a_paused_rollout_says_where_it_stands_and_does_not_stall() -> None:
    target = wanted(serving(rollout={"paused": True}))
    observed = serving_well("old", kept={"old": ()})
    begun = plan(target, observed, NOW)
    later = plan(target, replace(observed, status=begun.status), NOW + timedelta(days=2))
    status, reason, message = condition(later, "Progressing")
    assert (status, reason) == ("True", "RolloutPaused")
    assert f"{target.revision} 0P+0D" in message
    assert condition(later, "Stalled")[0] == ""
    sizes = {obj["metadata"]["name"]: obj["spec"]["replicas"] for obj in later.apply if obj["kind"] == "Deployment"}
    assert sizes == {f"chat-{role}-{target.revision}": 0 for role in ("prefill", "decode")} | {"chat-router": 1}


def test_reuse_that_is_off_is_said_to_be_off() -> None:
    target = wanted(serving(kvTransfer={"bidirectional": {"enabled": False}}))
    decided = plan(target, serving_well(target.revision), NOW)
    assert condition(decided, "ReuseEffective")[:2] == ("False", "ReuseDisabled")
    assert condition(decided, "Ready")[0] == "True"


def test_suspended_is_not_ready_and_at_rest() -> None:
    target = wanted(serving(suspend=True))
    decided = plan(target, Observed(workloads=tuple(engines(target.revision, ready=0, replicas=0))), NOW)
    assert condition(decided, "Ready")[:2] == ("False", "Suspended")
    assert condition(decided, "Reconciling")[0] == ""
    assert {obj["spec"]["replicas"] for obj in decided.apply if obj["kind"] == "Deployment"} == {0}


def test_a_mistake_in_the_spec_touches_nothing_and_names_the_remedy() -> None:
    before = settled().status
    decided = plan_stalled(serving(), [Problem("engine.args", "remove --port")], Observed(status=before), NOW)
    assert (decided.apply, decided.delete, decided.fleet) == ((), (), None)
    assert condition(decided, "Stalled") == ("True", "InvalidSpec", "spec.engine.args: remove --port")
    assert condition(decided, "Ready")[0] == "True"  # what ran goes on running
    assert condition(decided, "Reconciling")[0] == ""
    assert decided.status["prefill"] == before["prefill"]
    fresh = plan_stalled(serving(), [Problem("engine.args", "remove --port")], Observed(), NOW)
    assert condition(fresh, "Ready")[:2] == ("False", "InvalidSpec")
    assert condition(fresh, "DecodeReady")[:2] == ("Unknown", "Unknown")
    Status.model_validate(fresh.status)


def test_the_same_again_changes_nothing() -> None:
    target = wanted()
    observed = serving_well(target.revision)
    first = plan(target, observed, NOW)
    later = plan(target, replace(observed, status=first.status), datetime(2027, 1, 1, tzinfo=UTC))
    assert later.status == first.status
    assert later.events == ()


def test_context_is_used() -> None:
    images = [
        container["image"]
        for obj in plan(wanted(context=CONTEXT), Observed(), NOW).apply
        if obj["kind"] == "Deployment"
        for container in obj["spec"]["template"]["spec"].get("initContainers", ())
    ]
    assert set(images) == {"connector:1"}
