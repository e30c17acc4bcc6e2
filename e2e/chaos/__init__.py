"""Chaos: a router and simulated engines under seeded load and faults, every answer and every hold accounted for."""
