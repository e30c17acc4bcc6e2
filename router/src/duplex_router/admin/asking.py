"""One request to an engine, awaited: for what the router itself asks, away from the hot path."""

from __future__ import annotations

import asyncio

from duplex_router.fleet.engines import Engine
from duplex_router.turn.legs import Answer, Failure, Transport, WholeAnswer

_LINES = b"content-type: application/json\r\n"


async def ask(
    transport: Transport,
    engine: Engine,
    path: bytes,
    body: bytes = b"",
    *,
    method: bytes = b"POST",
    seconds: float = 5.0,
) -> Answer | Failure:
    """Send a request and wait for its answer; cancelling aborts it."""
    future: asyncio.Future[Answer | Failure] = asyncio.get_running_loop().create_future()

    def done(result: Answer | Failure) -> None:
        if not future.done():
            future.set_result(result)

    receiver = WholeAnswer(done)
    receiver.exchange = transport.request(engine, path, _LINES, [body], receiver, seconds=seconds, method=method)
    try:
        return await future
    except asyncio.CancelledError:
        receiver.exchange.abort()
        raise
