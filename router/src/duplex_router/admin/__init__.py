"""The router seen from outside: health, metrics, statistics, explanations, the canary, and what it asks engines."""
