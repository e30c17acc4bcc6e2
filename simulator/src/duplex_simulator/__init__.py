"""A vLLM-shaped engine without a model or GPU, with the KV rules of the real one."""
