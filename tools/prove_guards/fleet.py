"""Guards of the choice of engines, of retries, and of the queue."""

from __future__ import annotations

from .mutation import Mutation

_FLEET = "router/src/duplex_router/fleet"
_TURN = "router/src/duplex_router/turn"
_CHOICE = "router/tests/router_tests/test_choice.py"
_TRIES = "router/tests/router_tests/test_tries.py"
_QUEUE = "router/tests/router_tests/test_admission.py"
_MOVING = "router/tests/router_tests/test_moving.py"

MUTATIONS = (
    Mutation(
        "moving",
        "a turn takes its handle along to another revision",
        f"{_TURN}/turn.py",
        "if self._offering.live:\n            self._offering.withdraw(Rejection.REVISION)",
        "pass",
        f"{_MOVING}::test_a_turn_that_waits_moves_without_its_handle",
    ),
    Mutation(
        "moving",
        "a turn goes from revision to revision for ever",
        f"{_TURN}/tries.py",
        "return not moved",
        "return True",
        f"{_MOVING}::test_it_goes_to_another_revision_once",
    ),
    Mutation(
        "moving",
        "a turn under way finds no engine as soon as its last one is to go",
        f"{_FLEET}/fleet.py",
        "self._decodes.get(revision) or self._leaving(revision, _DECODE)",
        "self._decodes.get(revision)",
        f"{_MOVING}::test_a_turn_that_prefill_has_begun_ends_on_a_decode_engine_that_is_to_go",
    ),
    Mutation(
        "broken pair",
        "the decode engine is chosen whether or not it can read",
        f"{_FLEET}/fleet.py",
        "able = [engine for engine in able if self.pairs.usable(prefill, engine.key)] or able",
        "pass",
        f"{_CHOICE}::test_a_broken_pair_is_avoided_and_neither_engine_is_condemned",
    ),
    Mutation(
        "broken pair",
        "the prefill engine is chosen whether or not it can pull",
        f"{_FLEET}/fleet.py",
        "if holder and not self.pairs.usable(prefill.key, holder):",
        "if False:",
        f"{_TRIES}::test_a_broken_pair_is_avoided_by_another_prefill_engine",
    ),
    Mutation(
        "broken pair",
        "a handle is offered to an engine that cannot pull by it",
        f"{_TURN}/offering.py",
        "if not core.fleet.pairs.usable(engine.key, source.engine):",
        "if False:",
        f"{_TRIES}::test_without_another_prefill_engine_the_handle_is_left_out_and_kept",
    ),
    Mutation(
        "broken pair",
        "a failed transfer condemns the engine",
        f"{_FLEET}/engines.py",
        "if len(self.failed_with) >= PARTNERS_THAT_CONDEMN:",
        "if True:",
        f"{_TRIES}::test_a_pull_that_a_guarded_engine_reports_as_failed_counts_against_the_pair",
    ),
    Mutation(
        "circuit breaker",
        "an engine that failed does not rest",
        f"{_FLEET}/fleet.py",
        "return [engine for engine in ready if now >= engine.resting_until] or ready",
        "return ready",
        f"{_CHOICE}::test_an_engine_that_failed_rests_longer_each_time_unless_it_is_the_only_one",
    ),
    Mutation(
        "circuit breaker",
        "the rest of what fails for days has no bound before it is cut",
        f"{_FLEET}/engines.py",
        "2.0 ** min(times, _MOST_DOUBLINGS)",
        "2.0**times",
        f"{_CHOICE}::test_what_has_failed_for_days_rests_as_long_as_before",
    ),
    Mutation(
        "circuit breaker",
        "all try a rested engine at once",
        f"{_FLEET}/engines.py",
        "        if self.failures:\n            self.resting_until = now + TRIAL_SECONDS\n",
        "        return\n",
        f"{_CHOICE}::test_a_rested_engine_is_tried_by_one_leg_until_that_went_well",
    ),
    Mutation(
        "bounded load",
        "affinity holds whatever the load",
        f"{_FLEET}/choice.py",
        "if engine.key == last and laden <= bound:",
        "if engine.key == last:",
        f"{_CHOICE}::test_a_crowd_of_one_conversation_spreads_out",
    ),
    Mutation(
        "one retry",
        "a turn is retried without end",
        f"{_TURN}/tries.py",
        "again, self._retried = not self._retried, True",
        "again = True",
        f"{_TRIES}::test_a_turn_is_retried_once_whichever_leg_fails",
    ),
    Mutation(
        "one retry",
        "the retry meets the engine that may have hung",
        f"{_TURN}/tries.py",
        "return result not in (Failure.LOST, Failure.UNREACHABLE)",
        "return False",
        f"{_TRIES}::test_the_retry_of_a_hand_off_that_hung_meets_neither_engine",
    ),
    Mutation(
        "expiry margin",
        "a stock handle that lapsed in the queue is offered",
        f"{_TURN}/offering.py",
        "elif core.clock() >= source.usable_until():",
        "elif False:",
        f"{_QUEUE}::test_a_stock_handle_that_lapsed_while_its_turn_waited_is_not_offered",
    ),
    Mutation(
        "queue",
        "engines are given turns without bound",
        f"{_TURN}/admission.py",
        "if queue.turns >= settings.engine_turns * len(fleet.ready(ticket.revision, _DECODE)):",
        "if False:",
        f"{_QUEUE}::test_turns_beyond_the_bound_wait_and_start_as_others_leave",
    ),
    Mutation(
        "queue",
        "turns wait without bound",
        f"{_TURN}/admission.py",
        "if queue.length > self._settings.max_waiting:",
        "if False:",
        f"{_QUEUE}::test_beyond_the_queue_the_answer_is_429",
    ),
    Mutation(
        "queue",
        "one tenant's turns go before all others'",
        f"{_TURN}/admission.py",
        "            self.waiting.move_to_end(ticket.tenant)\n",
        "            pass\n",
        f"{_QUEUE}::test_tenants_take_turns",
    ),
    Mutation(
        "queue",
        "a client that leaves keeps its place",
        f"{_TURN}/admission.py",
        "            queue.remove(ticket)\n            return\n",
        "            return\n",
        f"{_QUEUE}::test_a_client_that_leaves_while_it_waits_makes_room",
    ),
    Mutation(
        "draining",
        "a draining engine gets new legs",
        f"{_FLEET}/engines.py",
        "return self.ready and not self.draining",
        "return self.ready",
        "router/tests/router_tests/test_fleet.py::test_a_draining_engine_gets_no_legs_and_is_still_there",
    ),
)
