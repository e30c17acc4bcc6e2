"""Tests of what the end-to-end suites are made of."""
