"""Guards of the ledger that routers share: who may release, who may read, and what is believed of the store."""

from __future__ import annotations

from .mutation import Mutation

_LEDGER = "router/src/duplex_router/ledger/ledger.py"
_SCRIPTS = "router/src/duplex_router/store/scripts.py"
_SHARED = "router/src/duplex_router/store/shared.py"
_TESTS = "router/tests/router_tests/test_store.py"

MUTATIONS = (
    Mutation(
        "no release under another router's pull",
        "a withdrawn hold counts as free while it is read",
        _SCRIPTS,
        "if readers > 0 then",
        "if false then",
        f"{_TESTS}::test_a_borrowed_hold_is_released_only_after_it_was_given_back",
    ),
    Mutation(
        "no release under another router's pull",
        "a reader's engine that stands still is forgotten before the deadline that it was told",
        _SCRIPTS,
        "now + math.max(tonumber(ARGV[2]), left))",
        "now + tonumber(ARGV[2]))",
        f"{_TESTS}::test_a_borrowed_hold_is_kept_until_the_deadline_that_its_reader_was_told",
    ),
    Mutation(
        "no release under another router's pull",
        "pulls that an earlier life of the store knew of are forgotten",
        _SHARED,
        "if known.life == self._life:",
        "if True:",
        f"{_TESTS}::test_after_a_restart_of_the_store_what_routers_hold_is_there_again",
    ),
    Mutation(
        "single use on stock across routers",
        "a handle that was taken can be taken again",
        _SCRIPTS,
        "      redis.call('DEL', e)\n      redis.call('ZREM', p .. 'own:' .. f[2], id)\n      return {id, f[1], left}",
        "      return {id, f[1], left}",
        f"{_TESTS}::test_two_routers_race_for_a_stock_handle_and_one_gets_it",
    ),
    Mutation(
        "own what is offered",
        "a router long without the store relies on what it published",
        _LEDGER,
        "owned = not entry.published or entry in self._borrowed or now < self.shared_until",
        "owned = True",
        f"{_TESTS}::test_a_router_long_without_the_store_does_not_rely_on_what_it_published",
    ),
    Mutation(
        "own what is offered",
        "a router is inherited while its pulls may run",
        _SHARED,
        'return b"%d" % ((FENCE_SECONDS + self._pull_seconds) * 1000)',
        'return b"300"',
        f"{_TESTS}::test_a_dead_router_is_inherited_only_after_its_pulls_must_be_over",
    ),
    Mutation(
        "boot in the store",
        "a record of an earlier boot is found",
        _SCRIPTS,
        "and redis.call('GET', p .. 'b:' .. f[3]) == f[4] then",
        "then",
        f"{_TESTS}::test_a_record_of_an_earlier_boot_is_not_found",
    ),
    Mutation(
        "a store never holds a turn up",
        "late replies open no circuit",
        "router/src/duplex_router/store/link.py",
        "self._timeouts < TIMEOUTS_IN_A_ROW",
        "True",
        f"{_TESTS}::test_a_frozen_store_costs_one_timeout_each_for_two_and_then_nothing",
    ),
)
