"""vLLM's own multi-turn benchmark, unmodified, against the router with reuse on and off: `make bench-multi-turn`."""
