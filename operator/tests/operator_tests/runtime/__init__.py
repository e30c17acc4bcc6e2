"""Tests of duplex_operator.runtime."""
