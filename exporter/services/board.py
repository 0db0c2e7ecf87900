"""Where the present state hangs: written by the refresh loop, read by everyone else."""

import asyncio
from collections.abc import AsyncIterator

from exporter.core.state import State


class Board:
    """Holds the present State, and wakes those who wait for another one."""

    def __init__(self) -> None:
        self._state = State()
        self._changed = asyncio.Event()

    @property
    def state(self) -> State:
        """The state at this moment."""
        return self._state

    def publish(self, state: State) -> None:
        """Replace the state; everyone who follows is woken."""
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncIterator[State]:
        """The present state, then each later one that is still present when its turn comes."""
        seen: State | None = None
        while True:
            changed = self._changed
            if self._state is not seen:
                seen = self._state
                yield seen
            else:
                await changed.wait()
