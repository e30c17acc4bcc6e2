"""Tests of duplex_operator.reconcile, handlers and cli."""
