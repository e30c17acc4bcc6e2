"""Guards of engines that are taken away, of what may be missing meanwhile, and of who owns a role's number."""

from __future__ import annotations

from .mutation import Mutation

_SOURCE = "operator/src/duplex_operator"
_PLAN = f"{_SOURCE}/plan"
_TESTS = "operator/tests/operator_tests"
_DRAIN_TESTS = f"{_TESTS}/plan/test_drain.py"
_EVACUATION_TESTS = f"{_TESTS}/plan/test_evacuation.py"
_LEAVING = "connector/src/duplex_connector/leaving.py"
_LEAVING_TESTS = "connector/tests/connector_tests/test_leaving.py"

MUTATIONS = (
    Mutation(
        "drained first",
        "an engine goes before routers have heard of it",
        f"{_PLAN}/drain.py",
        "if not pod.doomed and heard and (view.idle(pod) or view.overdue(pod)):",
        "if not pod.doomed and (view.idle(pod) or view.overdue(pod)):",
        f"{_DRAIN_TESTS}::test_it_may_go_once_routers_have_heard_and_nothing_is_left_on_it",
    ),
    Mutation(
        "drained first",
        "one router's word is enough",
        f"{_PLAN}/drain.py",
        "heard = named and pod.name in view.announced and view.acknowledged",
        "heard = named and pod.name in view.announced",
        f"{_DRAIN_TESTS}::test_every_router_counts",
    ),
    Mutation(
        "drained first",
        "what an engine holds is not waited for",
        f"{_PLAN}/drain.py",
        "if not pod.doomed and heard and (view.idle(pod) or view.overdue(pod)):",
        "if not pod.doomed and heard:",
        f"{_DRAIN_TESTS}::test_it_may_go_once_routers_have_heard_and_nothing_is_left_on_it",
    ),
    Mutation(
        "drained first",
        "an engine that somebody deletes is not named to routers",
        f"{_PLAN}/drain.py",
        "ending = [pod.name for pod in observed.pods if pod.role in tuple(Role) and pod.terminating]",
        "ending: list[str] = []",
        f"{_DRAIN_TESTS}::test_engines_that_somebody_deletes_are_named_too",
    ),
    Mutation(
        "conversations end",
        "the last pair of a revision goes like any other engines",
        f"{_PLAN}/drain.py",
        "last = _last_pair(victims, view) if revision in present and not wanted.pair else ()",
        "last: tuple[Pod, ...] = ()",
        f"{_DRAIN_TESTS}::test_conversations_end_on_the_last_pair_of_their_revision",
    ),
    Mutation(
        "promised capacity",
        "the old revision goes at once where the new one has proved itself",
        f"{_PLAN}/sizes.py",
        "needed = max(units - bounds.unavailable - capacity(new.ready, target), Fraction(0))",
        "needed = Fraction(0)",
        f"{_TESTS}/plan/test_rollout.py::test_the_old_one_shrinks_as_the_new_one_grows",
    ),
    Mutation(
        "promised capacity",
        "a revision that has served nothing takes the old one's place",
        f"{_PLAN}/sizes.py",
        "stays = target if held or bounds.surge else _making_room(target, bounds, begun=not most - new.size)",
        "stays = size_of(Fraction(0), target)",
        f"{_TESTS}/plan/test_rollout.py::test_ready_pods_are_not_enough_a_token_must_have_come_through",
    ),
    Mutation(
        "promised capacity",
        "terminating engines are taken for free devices",
        f"{_PLAN}/sizes.py",
        "target) - leaving\n",
        "target)\n",
        f"{_TESTS}/plan/test_rollout.py::test_engines_on_their_way_out_still_take_their_room",
    ),
    Mutation(
        "promised capacity",
        "what is held grows beside engines that never served",
        f"{_PLAN}/sizes.py",
        ".least((limit - others - grown).most(old[0].size))",
        "",
        f"{_TESTS}/plan/test_rollout.py::"
        "test_what_is_held_grows_no_further_than_there_is_room_beside_what_never_served",
    ),
    Mutation(
        "replaced first",
        "engines leave a cordoned node before others have taken their place",
        f"{_PLAN}/evacuation.py",
        "may_go = max(0, ready - (wants - missing))",
        "may_go = len(left)",
        f"{_EVACUATION_TESTS}::test_a_replacement_comes_first",
    ),
    Mutation(
        "replaced first",
        "a Deployment grows before the emptied engine is gone, and so keeps it",
        f"{_PLAN}/drain.py",
        "least = stay if leaving.gone else max(leaving.size, stay)",
        "least = max(leaving.size, stay)",
        f"{_EVACUATION_TESTS}::test_without_a_spare_engine_it_is_emptied_first_and_the_replacement_comes_after",
    ),
    Mutation(
        "no drain is blocked for ever",
        "an operator that does not see nodes lets no engine be evicted",
        f"{_PLAN}/decide.py",
        "missing = room.missing if observed.sees_nodes else room.missing.most(Sizes(1, 1))",
        "missing = room.missing",
        f"{_TESTS}/plan/test_decide.py::test_evictions_may_take_what_a_rollout_may_leave_missing",
    ),
    Mutation(
        "an autoscaler's number",
        "the operator writes it again",
        f"{_PLAN}/scale.py",
        "elif seen.replicas is None:",
        "else:",
        f"{_TESTS}/plan/test_scale.py::test_with_external_the_role_rules_and_is_never_written_again",
    ),
    Mutation(
        "an autoscaler's number",
        "the number to begin with is written whatever has been written since",
        f"{_SOURCE}/reconcile/writer.py",
        'seen = metadata | ({"resourceVersion": scale.version} if scale.version else {})',
        "seen = metadata",
        f"{_TESTS}/reconcile/test_rollouts.py::test_a_number_to_begin_with_does_not_overtake_an_autoscaler",
    ),
    Mutation(
        "KV outlives edits",
        "an edit of drainSeconds is a new revision",
        f"{_SOURCE}/render/revision.py",
        '{"replicas", "scaling", "drainSeconds"}',
        '{"replicas", "scaling"}',
        f"{_TESTS}/render/test_revision.py::test_how_long_engines_drain_is_no_reason_to_restart_them",
    ),
    Mutation(
        "the preStop hook waits",
        "blocks that nobody has read yet are not looked at",
        _LEAVING,
        "_BUSY: Final = (Metric.REQUESTS_RUNNING, Metric.REQUESTS_WAITING, Metric.KV_USAGE)",
        "_BUSY: Final = (Metric.REQUESTS_RUNNING, Metric.REQUESTS_WAITING)",
        f"{_LEAVING_TESTS}::test_judged_by_its_own_metrics",
    ),
    Mutation(
        "the preStop hook waits",
        "one quiet look is enough",
        _LEAVING,
        "if quiet >= QUIET_LOOKS or found is Look.GONE",
        "if quiet or found is Look.GONE",
        f"{_LEAVING_TESTS}::test_one_quiet_look_is_not_enough",
    ),
    Mutation(
        "the preStop hook waits",
        "a proxy in the environment is asked for the engine",
        _LEAVING,
        "build_opener(ProxyHandler({}))",
        "build_opener()",
        f"{_LEAVING_TESTS}::test_a_proxy_in_the_environment_is_not_asked",
    ),
    Mutation(
        "what a node has ended is no engine",
        "it is counted among the living",
        f"{_SOURCE}/reconcile/observe.py",
        "pods=tuple(pod for pod in pods if not pod.over),",
        "pods=pods,",
        f"{_TESTS}/reconcile/test_rollouts.py::test_what_a_node_has_left_of_an_engine_stands_in_nobodys_way",
    ),
    Mutation(
        "the status tells of missing replacements",
        "engines that wait for a replacement are not told of",
        f"{_PLAN}/decide.py",
        "replacement_condition(drained, observed, progress) or progressing_condition(",
        "progressing_condition(",
        f"{_TESTS}/plan/test_nodes.py"
        "::test_an_engine_that_waits_for_a_replacement_that_cannot_come_says_so_and_what_to_do",
    ),
    Mutation(
        "a dead node holds nothing up",
        "a rollout waits for the engines that it keeps",
        f"{_PLAN}/rollout.py",
        "going = [pod for pod in observed.pods if pod.terminating and not pod.stuck]",
        "going = [pod for pod in observed.pods if pod.terminating]",
        f"{_TESTS}/plan/test_nodes.py::test_what_a_dead_node_keeps_holds_up_neither_a_rollout_nor_a_suspend",
    ),
    Mutation(
        "a dead node holds nothing up",
        "a suspend waits for the routers that it keeps",
        f"{_PLAN}/rollout.py",
        'return any(pod.role == "router" and not pod.stuck for pod in observed.pods)',
        'return any(pod.role == "router" for pod in observed.pods)',
        f"{_TESTS}/plan/test_nodes.py::test_what_a_dead_node_keeps_holds_up_neither_a_rollout_nor_a_suspend",
    ),
    Mutation(
        "an autoscaler's number",
        "where its object is lost, the role shrinks to what the serving begins with",
        f"{_PLAN}/scale.py",
        "(former or role.replicas) if number is None",
        "role.replicas if number is None",
        f"{_TESTS}/plan/test_scale.py::test_a_number_that_is_lost_with_its_object_is_the_one_aimed_at_before",
    ),
    Mutation(
        "the chosen engine goes",
        "one that is not ready is not marked before its Deployment shrinks",
        f"{_PLAN}/drain.py",
        "chosen = [pod for pod in victims if not pod.ready] if len(victims) < len(living) else []",
        "chosen: list[Pod] = []",
        f"{_TESTS}/plan/test_drain.py"
        "::test_one_that_is_not_ready_is_marked_as_the_one_to_go_before_its_deployment_shrinks",
    ),
    Mutation(
        "the last good pair",
        "it makes room for a new revision that has its room already",
        f"{_PLAN}/sizes.py",
        "1 if units > 1 or begun else 0",
        "1 if units > 1 else 0",
        f"{_TESTS}/plan/test_rollout.py"
        "::test_a_scale_down_to_one_leaves_the_pair_that_serves_where_the_new_one_has_its_room_already",
    ),
)
