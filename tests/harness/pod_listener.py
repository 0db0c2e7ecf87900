"""Collects the events of a source of pods."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager

from exporter.pods.source import PodEvent, PodWatcher, PodWatchError
from harness.waiting import background, until_holds

LIMIT = 20.0


class Listener:
    """The events of a source so far, and its error."""

    def __init__(self) -> None:
        self.told: list[PodEvent] = []
        self.error: PodWatchError | None = None

    async def until(self, condition: Callable[[list[PodEvent]], object]) -> None:
        """Wait until the events satisfy a condition."""
        async with asyncio.timeout(LIMIT):
            while not condition(self.told):
                assert self.error is None, self.error
                await asyncio.sleep(0.005)

    async def failure(self) -> PodWatchError:
        """Wait until the source fails."""
        await until_holds(lambda: self.error)
        assert self.error is not None
        return self.error

    async def follow(self, source: PodWatcher) -> None:
        try:
            async with aclosing(source.follow()) as stream:
                async for told in stream:
                    self.told.append(told)
        except PodWatchError as error:
            self.error = error


@asynccontextmanager
async def following(source: PodWatcher) -> AsyncGenerator[Listener]:
    """Follow a source while in the context."""
    listener = Listener()
    async with background(listener.follow(source)):
        yield listener
