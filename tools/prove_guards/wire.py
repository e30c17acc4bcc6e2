"""Guards of the router's wire layer and of the order of legs."""

from __future__ import annotations

from .mutation import Mutation

_WIRE = "router/src/duplex_router/wire"
_TURN = "router/src/duplex_router/turn"
_TESTS = "router/tests/router_tests"

MUTATIONS = (
    Mutation(
        "strip in",
        "a client's kv_transfer_params reach the engines",
        f"{_WIRE}/inference.py",
        "    for name in _FOREIGN_FIELDS:\n        fields.pop(name, None)\n",
        "",
        f"{_TESTS}/test_inference.py::test_an_escaped_spelling_of_the_field_is_stripped_too",
    ),
    Mutation(
        "strip in",
        "they reach the engines in vllm_xargs",
        f"{_WIRE}/inference.py",
        "    _refuse_smuggled_params(fields)\n",
        "",
        f"{_TESTS}/test_inference.py::test_bad_bodies_are_refused",
    ),
    Mutation(
        "strip in",
        "two of them: an engine may take the other one",
        f"{_WIRE}/inference.py",
        "    if twice in _UNIQUE_FIELDS[endpoint]:\n",
        "    if False:\n",
        f"{_TESTS}/test_inference.py::test_bad_bodies_are_refused",
    ),
    Mutation(
        "cut out",
        "an engine's handle reaches the client",
        f"{_WIRE}/reply.py",
        "return _without(data, self.handle)",
        "return data",
        f"{_TESTS}/test_stream.py::test_any_split_gives_the_same_clean_stream",
    ),
    Mutation(
        "cut out",
        "a handle where none is expected passes",
        f"{_WIRE}/reply.py",
        "if data == _DONE or not may_hold_params(data):",
        "if True:",
        f"{_TESTS}/test_stream.py::test_a_handle_that_cannot_be_cut_ends_the_stream",
    ),
    Mutation(
        "threshold",
        "the policy's threshold is not sent with the handle",
        f"{_WIRE}/params.py",
        "more = {Duplex.THRESHOLD: _number(threshold_tokens), Duplex.KEEP",
        "more = {Duplex.KEEP",
        f"{_TESTS}/test_params.py::test_an_offer_is_the_handle_with_threshold_and_keep",
    ),
    Mutation(
        "P-failure rule",
        "a 200 with finish_reason error goes on to decode",
        f"{_TURN}/turn.py",
        "if engine is None or answer is None or answer.failed:",
        "if engine is None or answer is None:",
        f"{_TESTS}/test_turn.py::test_a_finish_reason_of_error_is_a_failure_and_never_reaches_decode",
    ),
    Mutation(
        "P-failure rule",
        "finish_reason error is not seen",
        f"{_WIRE}/params.py",
        'return any(choice.finish_reason == "error" for choice in self.choices)',
        "return False",
        f"{_TESTS}/test_params.py::test_a_200_can_be_a_failure",
    ),
    Mutation(
        "hand-off read once",
        "a decode leg may be sent twice",
        f"{_TURN}/turn.py",
        "repeatable = self._phase is Phase.PREFILL and (self._subject.guarded or not self._offering.live)",
        "repeatable = True",
        f"{_TESTS}/test_turn.py::test_a_failed_decode_leg_costs_both_legs_once_more",
    ),
    Mutation(
        "hand-off owned",
        "a hand-off that nobody reads is left to lapse",
        f"{_TURN}/turn.py",
        "        if not (again and unread):\n            self._drop_hand_off()\n",
        "",
        f"{_TESTS}/test_turn.py::test_a_failed_decode_leg_costs_both_legs_once_more",
    ),
    Mutation(
        "hold owned",
        "a hold that was not asked for is left to lapse",
        f"{_TURN}/retention.py",
        "        core.keeper.release_unowned(handle, engine.key, finished.revision)\n",
        "",
        f"{_TESTS}/test_turn.py::test_where_nothing_shall_be_held_nothing_is",
    ),
)
