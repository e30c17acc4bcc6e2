"""Tests of the API models, the CRD and its rules."""
