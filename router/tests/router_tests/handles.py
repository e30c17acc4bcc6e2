"""Handles as a guarded decode engine writes them."""

from typing import Any


def handle_fields(
    *,
    request: str = "chatcmpl-1",
    engine: str = "engine-d",
    tokens: int = 40,
    blocks: list[list[int]] | None = None,
    expiry: float = 1000.5,
    **more: Any,
) -> dict[str, Any]:
    return {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": blocks if blocks is not None else [list(range(-(-tokens // 16)))],
        "remote_engine_id": engine,
        "remote_request_id": request,
        "remote_host": "10.0.2.9",
        "remote_port": 5600,
        "tp_size": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": expiry,
        "duplex": {"step": 64, "marks": [], "count": tokens, "last": "ab"},
        **more,
    }
