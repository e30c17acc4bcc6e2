"""Tests of duplex lint and plan."""
