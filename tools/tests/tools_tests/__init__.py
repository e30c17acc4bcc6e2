"""Tests of the repository itself: its layers and its house rules."""
