"""Guards of the connector: what an engine pulls, from whom, and what it keeps."""

from __future__ import annotations

from .mutation import Mutation

_PROOF = "connector/src/duplex_connector/proof.py"
_PROOF_TESTS = "connector/tests/connector_tests/test_proof.py"
_TURN = "connector/src/duplex_connector/turn.py"
_TURN_TESTS = "connector/tests/connector_tests/test_turn.py"
_GUARDED = "simulator/src/duplex_simulator/guarded.py"
_ENGINE_TESTS = "simulator/tests/simulator_tests/test_engine.py"

MUTATIONS = (
    Mutation(
        "token proof",
        "marks are not compared",
        _PROOF,
        "        if chain.copy().hexdigest() != mark:\n            return\n",
        "",
        f"{_PROOF_TESTS}::test_one_wrong_token_in_the_first_mark_proves_nothing",
    ),
    Mutation(
        "token proof",
        "the last digest is not compared",
        _PROOF,
        "if chain.hexdigest() == published[Duplex.LAST]:",
        "if True:",
        f"{_PROOF_TESTS}::test_never_more_is_proved_than_is_common",
    ),
    Mutation(
        "token proof",
        "a handle without a proof is pulled",
        _PROOF,
        "        return Reason.NO_PROOF\n",
        "        return None\n",
        f"{_PROOF_TESTS}::test_a_handle_without_proof_is_not_pulled",
    ),
    Mutation(
        "token proof",
        "a diverging history is pulled whole",
        _PROOF,
        "    tokens = proved // block_size * block_size\n",
        "    tokens = published[Duplex.COUNT]\n",
        f"{_PROOF_TESTS}::test_a_diverging_prompt_gets_the_proved_blocks_only",
    ),
    Mutation(
        "proof seed: adapter",
        "the adapter does not seed the digests",
        _PROOF,
        "json.dumps([list(adapter) if adapter else None, cache_salt]",
        "json.dumps([None, cache_salt]",
        f"{_PROOF_TESTS}::test_another_adapter_or_salt_proves_nothing",
    ),
    Mutation(
        "proof seed: cache salt",
        "the cache salt does not seed the digests",
        _PROOF,
        "json.dumps([list(adapter) if adapter else None, cache_salt]",
        "json.dumps([list(adapter) if adapter else None, None]",
        f"{_PROOF_TESTS}::test_another_adapter_or_salt_proves_nothing",
    ),
    Mutation(
        "proof: groups",
        "block sizes and kinds of groups are not compared",
        _PROOF,
        "if published.get(Duplex.GROUPS) != [group.as_json() for group in groups]:",
        "if False:",
        f"{_PROOF_TESTS}::test_other_groups_or_block_sizes_are_refused",
    ),
    Mutation(
        "proof: groups",
        "a window model pulls a part",
        _PROOF,
        "if any(group.kind is not GroupKind.FULL for group in groups):",
        "if False:",
        f"{_PROOF_TESTS}::test_a_window_model_pulls_all_or_nothing",
    ),
    Mutation(
        "proof: groups",
        "a state-space model pulls what it holds exactly",
        _PROOF,
        "if any(group.kind is GroupKind.STATE for group in groups) and proved >= len(prompt_ids):",
        "if False:",
        f"{_PROOF_TESTS}::test_a_state_model_refuses_the_prompt_it_holds_exactly",
    ),
    Mutation(
        "malformed handles",
        "shape and count of block ids are not checked",
        _PROOF,
        "return None if ids_fit and params.get(Params.NUM_TOKENS) == count else Reason.MALFORMED",
        "return None",
        f"{_PROOF_TESTS}::test_a_malformed_handle_is_computed",
    ),
    Mutation(
        "threshold",
        "the engine pulls however little is missing",
        _TURN,
        "if not self.is_hand_off and missing < (default_threshold if threshold is None else threshold):",
        "if False:",
        f"{_TURN_TESTS}::test_the_requests_threshold_wins_over_the_engines",
    ),
    Mutation(
        "no second load",
        "a failed load is asked for again, and never comes",
        _TURN,
        "        if self.admitted:\n            self.pulled = 0\n",
        "        if False:\n            self.pulled = 0\n",
        f"{_TURN_TESTS}::test_after_a_failed_load_the_engine_computes",
    ),
    Mutation(
        "expiry margin",
        "a read begins however near its deadline is",
        "connector/src/duplex_connector/leases.py",
        "return now + HANDLE_EXPIRY_MARGIN_SECONDS < deadline",
        "return True",
        f"{_ENGINE_TESTS}::test_a_handle_near_its_deadline_is_declined",
    ),
    Mutation(
        "late read",
        "what came after the lease is used",
        "connector/src/duplex_connector/leases.py",
        "return now + LATE_READ_MARGIN_SECONDS < deadline",
        "return True",
        f"{_ENGINE_TESTS}::test_what_was_read_after_the_lease_is_not_used",
    ),
    Mutation(
        "ttl",
        "a turn that shall not be held is held",
        _GUARDED,
        "if not is_prefill and turn.instructions.ttl == 0:",
        "if False:",
        f"{_ENGINE_TESTS}::test_a_guarded_hold_lasts_as_its_request_says_and_is_read_more_than_once",
    ),
)
