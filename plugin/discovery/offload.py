"""Blocking looks at the host in threads of their own, bounded in time.

A look may hang for good (a dead network file system, a driver's fault). Then its thread is left
behind, as a daemon, so that it holds up neither the process nor its end; and it is not joined by
ever more threads that hang at the same place.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class StuckError(Exception):
    """A look that did not come back in time; the message says for how long."""


class Offload:
    """Threads for one resource's looks. No more are begun while `most` hang.

    A thread stays for `linger` seconds after its look: to begin one anew takes a tenth of a millisecond,
    and now and then four, for the interpreter is handed on.
    """

    def __init__(self, most: int = 4, *, linger: float = 0.0) -> None:
        self._most = most
        self._linger = linger
        self._idle: list[_Worker] = []
        self._stuck: set[_Worker] = set()

    async def run(self, look: Callable[[], T], *, limit: float) -> T:
        """`look()` in a thread. Raises what it raises, and StuckError after `limit` seconds."""
        self._stuck = {stuck for stuck in self._stuck if stuck.is_alive()}
        if len(self._stuck) >= self._most:
            raise StuckError("an earlier look at the host still hangs")
        job = _Job(look)
        worker = self._begin(job)
        try:
            async with asyncio.timeout(limit):
                await job.done.wait()
        except TimeoutError:
            worker.leave()
            self._stuck.add(worker)
            raise StuckError(f"no answer within {limit:g} s") from None
        if self._linger:
            self._idle.append(worker)
        return job.result()

    def _begin(self, job: "_Job[T]") -> "_Worker":
        while self._idle:
            worker = self._idle.pop()
            if worker.take(job):
                return worker
        worker = _Worker(self._linger)
        worker.take(job)
        worker.start()
        return worker


class _Job(Generic[T]):
    """One look, under way."""

    def __init__(self, look: Callable[[], T]) -> None:
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


class _Worker(threading.Thread):
    """A thread that looks, and ends when it had nothing to do for `linger` seconds."""

    def __init__(self, linger: float) -> None:
        super().__init__(name="look", daemon=True)
        self._linger = linger
        self._jobs: SimpleQueue[_Job[Any]] = SimpleQueue()
        self._lock = threading.Lock()
        self._ended = False

    def take(self, job: _Job[Any]) -> bool:
        """Do this next; False where it is too late."""
        with self._lock:
            if not self._ended:
                self._jobs.put(job)
            return not self._ended

    def leave(self) -> None:
        """End with the look that is under way."""
        self._linger = 0.0

    def run(self) -> None:
        while not self._end():
            with suppress(Empty):
                while True:
                    self._jobs.get(timeout=self._linger).run()

    def _end(self) -> bool:
        """Whether nothing has come in the last moment; from then on nothing is taken."""
        with self._lock:
            self._ended = self._jobs.empty()
            return self._ended
