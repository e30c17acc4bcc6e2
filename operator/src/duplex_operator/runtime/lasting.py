"""Work that never ends, and what is done when it ends all the same."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class EndedError(Exception):
    """Work that never ends has ended without a word: it returned, or something that does not own it cancelled it."""


async def lasting(*works: Coroutine[Any, Any, None]) -> None:
    """Do works that never end, all together, until cancelled or until one of them ends, which ends the others.

    Raises what that one raised, or ``EndedError``. A ``TaskGroup`` passes over a task that returns or that something
    else cancelled (kopf's end, a timeout that came too late): the others would go on without it, and nobody would know.
    """
    tasks = [asyncio.create_task(work) for work in works]
    done: set[asyncio.Task[None]] = set()
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        outcome(task)
    raise EndedError("work that never ends has ended")


def outcome(task: asyncio.Future[Any]) -> None:
    """Raise what a task that is done has raised; ``EndedError`` if it was cancelled, which its owner had not done."""
    if task.cancelled():
        raise EndedError(f"{task} was cancelled by something else")
    task.result()
