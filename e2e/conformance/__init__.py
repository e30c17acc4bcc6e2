"""One suite for the KV protocol, for the simulator and for real vLLM: keys, pulls, block counts, failures."""
