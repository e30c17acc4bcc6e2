"""Checks of the KV protocol on real vLLM servers: stock and guarded pairs beside a plain server."""
