"""Time, injected: the one clock of a process."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct


class Instant(Struct, frozen=True):
    """One instant by both clocks: `wall` in seconds since 1970, `monotonic` in seconds that only grow."""

    wall: float
    monotonic: float


class Clock:
    """Wall-clock time for people, monotonic time for measuring, and unix time that does not jump for ages.

    An age decides whether the mapping is withdrawn, so `now` does not follow a wall clock that an
    administrator sets back: it runs with the monotonic clock between two calls of `advance`.
    """

    __slots__ = ("_offset", "monotonic", "wall")

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.wall = wall
        self.monotonic = monotonic
        self._offset = wall() - monotonic()

    def now(self) -> float:
        """Unix time. It jumps in `advance` alone."""
        return self._offset + self.monotonic()

    def drift(self) -> float:
        """The seconds by which the wall clock is ahead of `now`."""
        return self.wall() - self.now()

    def advance(self, seconds: float) -> None:
        """Move `now` ahead, as by `drift`. Call it together with the publication of times that include it."""
        self._offset += seconds

    def instant(self) -> Instant:
        """This instant by the wall clock and the monotonic clock."""
        return Instant(self.wall(), self.monotonic())


async def wait_within(event: asyncio.Event, limit: float | None) -> bool:
    """Wait until `event` is set, at most `limit` seconds; returns whether it is."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit):
            await event.wait()
    return event.is_set()
