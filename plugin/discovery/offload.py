"""Blocking looks at the host in threads of their own, bounded in time.

A look may hang for good (a dead network file system, a driver's fault). Then its thread is left
behind, as a daemon, so that it holds up neither the process nor its end; and it is not joined by
ever more threads that hang at the same place.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class StuckError(Exception):
    """A look that did not come back in time; the message says for how long."""


class Offload:
    """Threads for one resource's looks. No more are begun while `most` hang."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._stuck: set[threading.Thread] = set()

    async def run(self, look: Callable[[], T], *, limit: float) -> T:
        """`look()` in a thread. Raises what it raises, and StuckError after `limit` seconds."""
        self._stuck = {stuck for stuck in self._stuck if stuck.is_alive()}
        if len(self._stuck) >= self._most:
            raise StuckError("an earlier look at the host still hangs")
        thread: _Look[T] = _Look(look)
        thread.start()
        try:
            async with asyncio.timeout(limit):
                await thread.done.wait()
        except TimeoutError:
            self._stuck.add(thread)
            raise StuckError(f"no answer within {limit:g} s") from None
        return thread.result()


class _Look(threading.Thread, Generic[T]):
    """One look, under way."""

    def __init__(self, look: Callable[[], T]) -> None:
        super().__init__(name="look", daemon=True)
        self.done = asyncio.Event()
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._outcome: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._outcome.append(self._look())
        except BaseException as error:  # noqa: BLE001 -- raised again where it is waited for
            self._error = error
        # RuntimeError: the loop has ended meanwhile, and with it who waited.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.done.set)

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._outcome[0]
