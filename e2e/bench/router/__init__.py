"""The router's speed, against nginx and the other routers of vLLM pairs, on fake engines: `make bench-router`."""
