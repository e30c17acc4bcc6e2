"""Tests of duplex_operator.plan."""
