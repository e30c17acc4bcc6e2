"""Who decides how many engines are wanted, and what the ServingRoles say of it."""

from datetime import UTC, datetime
from typing import Any

from duplex_operator.api import DisaggregatedServing
from duplex_operator.plan import Observed, Plan, RoleObject, plan
from duplex_operator.plan.scale import Scale, scales, wanted_sizes
from duplex_operator.plan.sizes import Sizes

from .build import engines, serving, serving_well, wanted
from .test_drain import pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EXTERNAL = {"mode": "External", "maxReplicas": 8}


def scaled(*, prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, **more: Any) -> Any:
    """Make a serving with two engines of each role."""
    base = {"instanceType": "cpu", "replicas": 2}
    return serving(prefill=base | (prefill or {}), decode=base | (decode or {}), **more)


def seeing(prefill: int | None = None, decode: int | None = None, **more: Any) -> Observed:
    roles = {
        "prefill": RoleObject("chat-prefill", "uid-p", prefill, "7"),
        "decode": RoleObject("chat-decode", "uid-d", decode, "9"),
    }
    return Observed(roles=roles, **more)


def told(of: DisaggregatedServing, observed: Observed) -> dict[str, Scale]:
    return {scale.name: scale for scale in scales(of, observed)}


def test_with_fixed_the_serving_rules_and_the_role_is_held_to_it() -> None:
    of, observed = scaled(), seeing(prefill=2, decode=7)
    assert wanted_sizes(of, observed) == Sizes(2, 2)
    written = told(of, observed)
    assert written["chat-prefill"].replicas is None, "it says so already"
    assert (written["chat-decode"].replicas, written["chat-decode"].version) == (2, "")


def test_with_external_the_role_rules_and_is_never_written_again() -> None:
    of, observed = scaled(decode={"scaling": EXTERNAL}), seeing(prefill=2, decode=7)
    assert wanted_sizes(of, observed) == Sizes(2, 7)
    assert told(of, observed)["chat-decode"].replicas is None


def test_the_number_to_begin_with_is_written_only_where_there_is_none_and_nobody_has_written_since() -> None:
    of, observed = scaled(decode={"scaling": EXTERNAL}), seeing(prefill=2)
    assert wanted_sizes(of, observed) == Sizes(2, 2)
    assert (told(of, observed)["chat-decode"].replicas, told(of, observed)["chat-decode"].version) == (2, "9")
    assert wanted_sizes(of, Observed()) == Sizes(2, 2)
    assert told(of, Observed()) == {}, "made first, sized at the next look"


def test_a_number_that_is_lost_with_its_object_is_the_one_aimed_at_before() -> None:
    of = scaled(decode={"scaling": EXTERNAL}, prefill={"scaling": EXTERNAL})
    status = {"prefill": {"replicas": 3}, "decode": {"replicas": 7}}
    runs = tuple(engines("r", ready=7, replicas=7))
    assert wanted_sizes(of, Observed(status=status, workloads=runs)) == Sizes(3, 7)
    again = told(of, seeing(status=status, workloads=runs))
    assert [again[name].replicas for name in ("chat-prefill", "chat-decode")] == [3, 7]
    assert wanted_sizes(scaled(), Observed(status=status, workloads=runs)) == Sizes(2, 2), "Fixed is the serving's"
    suspended = {"prefill": {"replicas": 0}, "decode": {"replicas": 0}}
    assert wanted_sizes(of, Observed(status=suspended, workloads=runs)) == Sizes(2, 2)


def test_engines_on_their_way_out_are_not_counted_for_autoscalers() -> None:
    pods = (pod("d-0"), pod("d-1", since="2026-01-01T00:00:00Z"), pod("d-2", terminating=True), pod("d-3", ready=False))
    status = told(scaled(decode={"scaling": EXTERNAL}), seeing(prefill=2, decode=2, pods=pods))["chat-decode"].status
    assert (status["replicas"], status["ready"]) == (2, 1)


def test_what_is_asked_for_stays_within_bounds_and_ratio_and_the_role_says_why() -> None:
    of = scaled(
        decode={"scaling": EXTERNAL}, prefill={"scaling": EXTERNAL}, scaling={"ratio": {"min": "1:4", "max": "1:1"}}
    )
    far, few = seeing(prefill=1, decode=30), seeing(prefill=1, decode=5)
    assert wanted_sizes(of, far) == Sizes(2, 8)
    assert "30 is asked for" in told(of, far)["chat-decode"].status["message"]
    assert "1 to 8" in told(of, far)["chat-decode"].status["message"]
    assert wanted_sizes(of, few) == Sizes(2, 5)
    assert "scaling.ratio 1:4 to 1:1" in told(of, few)["chat-prefill"].status["message"]
    assert "message" not in told(of, few)["chat-decode"].status


def test_suspended_nothing_is_wanted_and_what_autoscalers_asked_for_stays() -> None:
    of, observed = scaled(decode={"scaling": EXTERNAL}, suspend=True), seeing(prefill=2, decode=7)
    assert wanted_sizes(of, observed) == Sizes()
    written = told(of, observed)["chat-decode"]
    assert (written.replicas, written.status["wanted"], written.status["message"]) == (None, 0, "suspend is true")


def test_the_status_counts_pods_of_all_revisions_and_names_them() -> None:
    pods = (
        pod("d-0"),
        pod("d-1", revision="old", ready=False),
        pod("d-2", terminating=True),
        pod("p-0", role="prefill"),
    )
    status = told(scaled(), seeing(2, 2, pods=pods))["chat-decode"].status
    assert status == {
        "replicas": 2,
        "ready": 1,
        "wanted": 2,
        "mode": "Fixed",
        "selector": "duplex.dev/serving=chat,duplex.dev/role=decode",
    }


def sizes(decided: Plan) -> dict[str, int]:
    return {
        obj["metadata"]["labels"]["duplex.dev/role"]: obj["spec"]["replicas"]
        for obj in decided.apply
        if obj["kind"] == "Deployment"
    }


def test_engines_follow_an_autoscaler() -> None:
    of = wanted(scaled(decode={"scaling": EXTERNAL}))
    observed = serving_well(of.revision, roles=seeing(prefill=2, decode=5).roles)
    decided = plan(of, observed, NOW)
    assert sizes(decided) == {"prefill": 2, "decode": 5, "router": 1}
    assert decided.status["decode"]["replicas"] == 5
    roles = [obj for obj in decided.apply if obj["kind"] == "ServingRole"]
    assert [obj["metadata"]["name"] for obj in roles] == ["chat-prefill", "chat-decode"]
    assert not any("spec" in obj for obj in roles), "an apply of a number would take it from the autoscaler"
