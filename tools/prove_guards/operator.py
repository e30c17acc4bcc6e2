"""Guards of what the operator claims in status, and of the restarts that it does by itself."""

from __future__ import annotations

from .mutation import Mutation

_PLAN = "operator/src/duplex_operator/plan"
_TESTS = "operator/tests/operator_tests/plan"

MUTATIONS = (
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
        "if any(pod.terminating or not pod.ready for pod in fellows):",
        "if False:",
        f"{_TESTS}/test_healing.py::test_no_engine_is_restarted_while_another_of_its_role_is_missing",
    ),
)
