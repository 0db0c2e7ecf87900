"""Collects the events of a source of pods."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager

from exporter.pods.source import PodEvent, PodSeen, PodsListed, PodWatcher, PodWatchError, StreamOpened
from harness.waiting import background, until_holds

LIMIT = 20.0


class Listener:
    """The events of a source so far, and its error."""

    def __init__(self) -> None:
        self.told: list[PodEvent] = []
        self.error: PodWatchError | None = None

    @property
    def seen(self) -> list[PodSeen]:
        """The pods that appeared or changed."""
        return [event for event in self.told if isinstance(event, PodSeen)]

    @property
    def lists(self) -> list[PodsListed]:
        """The lists of all pods."""
        return [event for event in self.told if isinstance(event, PodsListed)]

    @property
    def uids(self) -> set[str]:
        """The uids of all pods, listed ones too."""
        seen = [*self.seen, *(pod for listed in self.lists for pod in listed.pods)]
        return {pod.identity.uid for pod in seen}

    @property
    def opened(self) -> int:
        """How often the watch was opened."""
        return sum(isinstance(event, StreamOpened) for event in self.told)

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
