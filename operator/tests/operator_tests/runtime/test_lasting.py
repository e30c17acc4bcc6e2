"""Work that never ends is missed when it ends, in whatever way."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest

from duplex_operator.runtime.lasting import EndedError, lasting
from operator_tests.fake_clock import settle


async def returns() -> None:
    await asyncio.sleep(0)


async def fails() -> None:
    await asyncio.sleep(0)
    raise ZeroDivisionError


async def is_cancelled() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.Event().wait()


@asynccontextmanager
async def another() -> AsyncIterator[tuple[Coroutine[None, None, None], list[str]]]:
    """Give work that never ends, and what became of it."""
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    yield work(), seen


@pytest.mark.parametrize(
    ("end", "error"), [(returns, EndedError), (fails, ZeroDivisionError), (is_cancelled, EndedError)]
)
async def test_the_first_that_ends_ends_all_and_is_told(
    end: Callable[[], Coroutine[None, None, None]], error: type[Exception]
) -> None:
    async with another() as (work, seen):
        with pytest.raises(error):
            await lasting(work, end())
        assert seen == ["ended"]


async def test_who_is_cancelled_ends_all_and_no_more() -> None:
    async with another() as (work, seen):
        task = asyncio.create_task(lasting(work))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["ended"]
