"""Tests of duplex_kube."""
