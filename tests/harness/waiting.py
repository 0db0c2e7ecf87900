"""Waiting for a condition, with a limit: never for a time."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")

FIRST, FURTHEST = 0.02, 0.2
"""Seconds between the first two probes, and between two of a long wait."""

LIMIT = 45.0
"""Seconds for what takes milliseconds on a machine that is not overloaded. A test has twice that and more."""


async def until(
    what: str, probe: Callable[[], Awaitable[T | None]], *, limit: float = LIMIT, pause: float | None = None
) -> T:
    """The first truthy value of `probe`; fails after `limit` seconds, saying what was waited for.

    An AssertionError of the probe counts as not yet, and is reported in the end. `pause`: seconds between two
    probes; by default they get further apart, as a suite's processor time would go into them.
    """
    end = time.monotonic() + limit
    between = FIRST if pause is None else pause
    while True:
        last: object
        try:
            value = await probe()
        except AssertionError as error:
            last = error
        else:
            if value:
                return value
            last = value
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit:g} s for: {what}; last seen: {last!r}")
        await asyncio.sleep(between)
        between = between if pause is not None else min(between * 1.2, FURTHEST)


async def until_holds(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait until `condition` holds, which something in this process brings about."""

    async def holds() -> bool:
        return bool(condition())

    await until(what, holds, pause=0.002)


@asynccontextmanager
async def background(work: Coroutine[object, object, None]) -> AsyncGenerator[None]:
    """Run `work` while in the context; its error fails the test."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome


async def until_equal(
    what: str, probe: Callable[[], Awaitable[object]], expected: object, *, limit: float = LIMIT
) -> None:
    """Wait until `probe` gives `expected`; fails with both after `limit` seconds."""

    async def equal() -> bool:
        seen = await probe()
        assert seen == expected, f"expected {expected!r}, saw {seen!r}"
        return True

    await until(what, equal, limit=limit)
