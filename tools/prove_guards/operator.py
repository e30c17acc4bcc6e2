"""Guards of what the operator claims in status, and of the restarts that it does by itself."""

from __future__ import annotations

from .mutation import Mutation

_PLAN = "operator/src/duplex_operator/plan"
_TESTS = "operator/tests/operator_tests/plan"

MUTATIONS = (
    Mutation(
        "no change stands",
        "an operator that starts believes what another says that it applied",
        "operator/src/duplex_operator/runtime/apply_cache.py",
        " == wanted and _covers(observed, _content(desired)):",
        " == wanted:",
        "operator/tests/operator_tests/runtime/test_apply_cache.py"
        "::test_what_was_changed_or_taken_away_since_does_not_stand",
    ),
    Mutation(
        "no change stands",
        "what is not desired any longer stays",
        "operator/src/duplex_operator/runtime/apply_cache.py",
        "_has_applied(observed) == wanted and _covers",
        "_covers",
        "operator/tests/operator_tests/runtime/test_apply_cache.py"
        "::test_what_was_applied_otherwise_does_not_stand_though_it_has_all_that_is_desired",
    ),
    Mutation(
        "Ready needs a token",
        "pods that are ready are enough",
        f"{_PLAN}/status.py",
        "if counts.served_tokens.get(name) and not _fails(name, counts)",
        "if not _fails(name, counts)",
        f"{_TESTS}/test_decide.py::test_ready_needs_a_token_and_not_only_pods",
    ),
    Mutation(
        "Ready ends",
        "a canary that fails again and again is not looked at",
        f"{_PLAN}/status.py",
        "return canary is not None and canary.failures >= CANARY_FAILURES",
        "return False",
        f"{_TESTS}/test_decide.py::test_ready_ends_when_neither_clients_nor_the_canary_are_served_any_longer",
    ),
    Mutation(
        "silent TCP",
        "over a fabric bytes alone are evidence",
        f"{_PLAN}/evidence.py",
        "if moved and resolved.fabric and any(pod.preflight != PREFLIGHT_PASSED for pod in engines):",
        "if False:",
        f"{_TESTS}/test_evidence.py::test_over_a_fabric_every_preflight_must_have_found_it",
    ),
    Mutation(
        "silent TCP",
        "bytes of a revision that is gone are evidence for the next",
        f"{_PLAN}/evidence.py",
        "moved = counts.bytes_by_revision.get(revision, 0)",
        "moved = counts.bytes_moved",
        f"{_TESTS}/test_evidence.py::test_transport_is_verified_by_bytes_of_the_revision_that_serves",
    ),
    Mutation(
        "restarts are rare",
        "a restart that did not help is done again at once",
        f"{_PLAN}/healing.py",
        "if not lasting or now < _rests_until(former):",
        "if not lasting:",
        f"{_TESTS}/test_healing.py::test_restarts_are_rare_and_rarer_with_each_that_did_not_help",
    ),
    Mutation(
        "restarts are rare",
        "a short cut is not left to mend by itself",
        f"{_PLAN}/healing.py",
        "lasting = [pair for pair in pairs if pair.since <= since]",
        "lasting = list(pairs)",
        f"{_TESTS}/test_healing.py::test_a_short_cut_is_left_to_mend_by_itself",
    ),
    Mutation(
        "restarts leave one",
        "an engine is restarted while another of its role is missing",
        f"{_PLAN}/healing.py",
        "if any(pod.terminating or not pod.ready or pod.draining_since for pod in fellows):",
        "if False:",
        f"{_TESTS}/test_healing.py::test_no_engine_is_restarted_while_another_of_its_role_is_missing",
    ),
    Mutation(
        "restarts leave one",
        "the only engine of a role is restarted although another of the pair could be",
        f"{_PLAN}/healing.py",
        "return not _leaves_a_pair(pods[name], observed, broken), ",
        "return False, ",
        f"{_TESTS}/test_healing.py::test_the_last_engine_of_a_role_stays_while_another_of_the_pair_can_go",
    ),
    Mutation(
        "the last good pair",
        "an old revision that has served is given up in a moment without ready engines",
        f"{_PLAN}/rollout.py",
        "alone = not any(one.ready.pair or one.name in served for one in old)",
        "alone = not able",
        f"{_TESTS}/test_rollout.py::test_one_that_served_outlives_a_moment_without_ready_engines",
    ),
    Mutation(
        "the last good pair",
        "of old revisions a newer one that never served comes before the one that serves",
        f"{_PLAN}/rollout.py",
        "key=lambda name: (name in served, name in sharing, _created(old[name]), name)",
        "key=lambda name: (_created(old[name]), name)",
        f"{_TESTS}/test_rollout.py::test_one_that_is_ready_and_never_served_takes_nothing_from_the_one_that_serves",
    ),
    Mutation(
        "no edit is lost",
        "what the answer to a status write shows is taken for known",
        "operator/src/duplex_operator/reconcile/reconciler.py",
        "return 0.0 if edited else pause",
        "return pause",
        "operator/tests/operator_tests/reconcile/test_reconciler.py"
        "::test_an_edit_that_the_answer_to_a_status_write_shows_is_worked_on_at_once",
    ),
)
