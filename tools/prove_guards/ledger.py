"""Guards of the router's ledger and offers: which handle is offered to whom, how often, and when a hold may go."""

from __future__ import annotations

from .mutation import Mutation

_BOUNDARY = "router/src/duplex_router/ledger/boundary.py"
_LEDGER = "router/src/duplex_router/ledger/ledger.py"
_CANONICAL = "router/src/duplex_router/ledger/canonical.py"
_READING = "router/src/duplex_router/ledger/reading.py"
_OFFER = "router/src/duplex_router/turn/offer.py"
_OFFERING = "router/src/duplex_router/turn/offering.py"
_CONTENT = "router/src/duplex_router/ledger/content.py"
_PROBE = "router/src/duplex_router/admin/probe.py"
_TEMPLATES = "router/src/duplex_router/turn/templates.py"
_RETENTION = "router/src/duplex_router/turn/retention.py"
_TESTS = "router/tests/router_tests"

MUTATIONS = (
    Mutation(
        "content match",
        "a message's content does not enter its mark",
        _CANONICAL,
        'return b"t%b\\0%b" % (text_bytes(message["role"]), text_bytes(content))',
        'return b"t%b\\0" % text_bytes(message["role"])',
        f"{_TESTS}/test_ledger.py::test_an_edited_history_matches_up_to_the_edit",
    ),
    Mutation(
        "content match",
        "what shapes the prompt does not seed the marks",
        _READING,
        "shaping = _shaping_of(request, proved=proved)",
        'shaping = _Shaping(["model"], proved=proved)',
        f"{_TESTS}/test_history.py::test_sampling_does_not_matter_and_what_shapes_the_prompt_does_where_nothing_is_proved",
    ),
    Mutation(
        "content match",
        "a history that only begins like one that was read counts as that one",
        "router/src/duplex_router/ledger/beginnings.py",
        "                if whole.digest() == each.digest:\n",
        "                if True:\n",
        f"{_TESTS}/test_beginnings.py::test_what_differs_is_read",
    ),
    Mutation(
        "content match",
        "an array counts as known up to the middle of an item",
        "router/src/duplex_router/ledger/beginnings.py",
        " or (each.length < length and array[each.length] != _COMMA)",
        "",
        f"{_TESTS}/test_beginnings.py::test_a_known_beginning_ends_with_an_item",
    ),
    Mutation(
        "content match on stock",
        "a stock handle is trusted beyond the match",
        _BOUNDARY,
        "[(depth, tokens) for depth, tokens in entry.tokens_known if depth <= match.depth]",
        "list(entry.tokens_known)",
        f"{_TESTS}/test_ledger.py::test_stock_engines_are_trusted_to_the_end_of_a_former_prompt_only",
    ),
    Mutation(
        "content match on stock",
        "a stock handle is spent on history that two share",
        _BOUNDARY,
        "    if ledger.shared(history, depth, entry.tenant):\n",
        "    if False:\n",
        f"{_TESTS}/test_ledger.py::test_stock_handles_are_not_spent_on_history_that_two_share",
    ),
    Mutation(
        "content match on stock",
        "a template that was not probed counts as stable",
        _OFFER,
        "        if slack is None:\n            return Offer(entry, match.depth, reason=Rejection.UNSTABLE_TEMPLATE)\n",
        "        slack = slack or 0\n",
        f"{_TESTS}/test_stock_turn.py::test_a_stock_engine_with_an_unprobed_template_gets_no_handle",
    ),
    Mutation(
        "content match on stock",
        "the end of a prompt counts as known though its turn may render otherwise later",
        _RETENTION,
        "    if core.templates.slack(finished.revision, subject.request, history) is None:\n        return ()\n",
        "",
        f"{_TESTS}/test_stock_templates.py::test_a_reply_sent_last_keeps_its_thought_until_a_user_speaks",
    ),
    Mutation(
        "content match on stock",
        "what is known of a prompt's tokens crosses to another revision",
        _RETENTION,
        "source is not None and source.revision == finished.revision",
        "source is not None",
        f"{_TESTS}/test_stock_turn.py::test_what_is_known_of_a_prompt_does_not_cross_to_another_revision",
    ),
    Mutation(
        "content match on stock",
        "the probe does not look at who else may speak after a prompt",
        _PROBE,
        "        for shape in [*shapes, *rare]:\n",
        "        for shape in shapes:\n",
        f"{_TESTS}/test_stock_templates.py::test_the_probe_counts_all_that_has_the_assistant_speak",
    ),
    Mutation(
        "content match on stock",
        "a handle is trusted to the last token that a probe found the same",
        _TEMPLATES,
        " + MARGIN_TOKENS\n",
        "\n",
        f"{_TESTS}/test_stock_turn.py::test_slack_and_a_margin_are_taken_off_before_the_blocks_are_counted",
    ),
    Mutation(
        "content match on stock",
        "a plain turn trusts one with tools to where plain ones end alike",
        _TEMPLATES,
        "max(found, self._slack.get((revision, arguments, True)) or 0)",
        "found",
        f"{_TESTS}/test_stock_turn.py::test_slack_and_a_margin_are_taken_off_before_the_blocks_are_counted",
    ),
    Mutation(
        "content match on stock",
        "what no probe can speak for counts as probed",
        _TEMPLATES,
        "if arguments is None or history.content is Content.UNPROBED:",
        "if arguments is None:",
        f"{_TESTS}/test_stock_turn.py::test_what_no_probe_can_speak_for_gets_no_handle",
    ),
    Mutation(
        "content match on stock",
        "what a tool found counts as a user's text where a client sends it so",
        _CONTENT,
        "plain = plain and not message.startswith(_TOOL_RESULT)",
        "plain = plain and True",
        f"{_TESTS}/test_stock_templates.py::test_what_a_conversation_is_made_of",
    ),
    Mutation(
        "single use on stock",
        "an offered handle stays in the ledger",
        _OFFER,
        "        self._ledger.take(entry, Fate.USED)\n",
        "",
        f"{_TESTS}/test_stock_turn.py::test_a_stock_handle_is_trimmed_and_used_once",
    ),
    Mutation(
        "single use on stock",
        "a burnt handle is offered to the next leg",
        _OFFERING,
        "if self.live and not (self._subject.guarded and innocent and elsewhere):",
        "if self.live and not (innocent and elsewhere):",
        f"{_TESTS}/test_stock_turn.py::test_a_stock_handle_is_burnt_by_a_failure_and_its_hold_released",
    ),
    Mutation(
        "single use on stock",
        "a turn that is done again offers a spent handle",
        _OFFERING,
        "        if self.live and not self._subject.guarded:\n            self.live = False\n",
        "        if False:\n            self.live = False\n",
        f"{_TESTS}/test_stock_turn.py::test_a_redone_turn_does_not_offer_a_stock_handle_again",
    ),
    Mutation(
        "no release under a pull",
        "an engine that may stand still is given a few seconds only",
        _OFFERING,
        "self._core.later(max(self._core.settings.pull_grace_seconds, rest), end)",
        "self._core.later(self._core.settings.pull_grace_seconds, end)",
        f"{_TESTS}/test_turn.py::test_the_pull_of_a_leg_that_was_cut_off_counts_until_the_deadline_that_its_engine_was_told",
    ),
    Mutation(
        "no release under a pull",
        "a stock engine that stands still is released under",
        _OFFERING,
        "        if reader.heard_at > cut_off_at:\n",
        "        if True:\n",
        f"{_TESTS}/test_stock_turn.py::test_a_stock_handle_is_not_released_under_an_engine_that_stands_still",
    ),
    Mutation(
        "no release under a pull",
        "a retired hold is released while it is read",
        _LEDGER,
        "if entry.pulls == 0 and self._holds(entry):",
        "if self._holds(entry):",
        f"{_TESTS}/test_turn.py::test_a_hold_is_not_released_while_another_turn_pulls_it",
    ),
    Mutation(
        "no release under a pull",
        "a leg that was cut off reads no more",
        _OFFERING,
        "        if surely:\n",
        "        if True:\n",
        f"{_TESTS}/test_turn.py::test_the_pull_of_a_leg_that_was_cut_off_counts_until_the_deadline_that_its_engine_was_told",
    ),
    Mutation(
        "no release under a pull",
        "a stock hold is released under a leg that was cut off",
        _OFFERING,
        "        if cut_off and self._reader is not None:\n",
        "        if False:\n",
        f"{_TESTS}/test_stock_turn.py::test_a_stock_handle_is_burnt_by_a_client_that_leaves",
    ),
    Mutation(
        "no release under a pull",
        "a hold that was released meanwhile is offered",
        _OFFERING,
        "            if not core.ledger.start_pull(source):\n",
        "            if not core.ledger.start_pull(source) and False:\n",
        f"{_TESTS}/test_turn.py::test_a_turn_that_is_done_again_does_not_offer_what_was_released_meanwhile",
    ),
    Mutation(
        "expiry margin",
        "a hold is offered up to its end",
        _LEDGER,
        "return self.deadline - self.margin",
        "return self.deadline",
        f"{_TESTS}/test_ledger.py::test_an_entry_is_not_matched_within_the_margin_of_its_deadline",
    ),
    Mutation(
        "tenant",
        "an entry's tenant is not compared",
        _LEDGER,
        "        if entry.tenant != tenant:",
        "        if False:",
        f"{_TESTS}/test_ledger.py::test_another_tenants_entry_is_not_matched_even_if_the_digests_were_equal",
    ),
    Mutation(
        "boot",
        "a new boot keeps what the old one held",
        _LEDGER,
        "if self._boots.get(entry.engine, entry.handle.boot) != entry.handle.boot:",
        "if False:",
        f"{_TESTS}/test_ledger.py::test_a_new_boot_drops_what_the_old_one_held",
    ),
    Mutation(
        "boot",
        "an engine that is gone keeps its handles",
        _OFFER,
        "if engine is None or not engine.serving:",
        "if engine is None:",
        f"{_TESTS}/test_turn.py::test_an_engine_that_serves_no_more_is_not_pulled_from",
    ),
    Mutation(
        "revision",
        "a handle crosses to another revision",
        _OFFER,
        'return "" if self._fleet.complete(entry.revision) else Rejection.REVISION',
        'return ""',
        f"{_TESTS}/test_turn.py::test_a_handle_never_crosses_to_another_revision",
    ),
)
