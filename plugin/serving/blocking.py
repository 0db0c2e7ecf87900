"""Blocking calls in daemon threads, bounded in time.

A call can hang for good (a dead network file system, a faulty driver). Its thread is then abandoned: as a
daemon it delays neither the process nor its end. The number of abandoned threads is limited.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class WorkerThread(threading.Thread):
    """Runs calls one after another, and ends after `linger` seconds without one."""

    def __init__(self, linger: float = 0.0) -> None:
        super().__init__(name="blocking", daemon=True)
        self._linger = linger
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._ended = False

    def take(self, call: Callable[[], T]) -> Future[T] | None:
        """Queue a call; None if the thread has ended."""
        result: Future[T] = Future()
        with self._lock:
            if self._ended:
                return None
            self._calls.put((result, call))
            if self.ident is None:
                self.start()
        return result

    def leave(self) -> None:
        """End after the current call."""
        self._linger = 0.0

    def run(self) -> None:
        """Run the queued calls, and wait for further ones."""
        while not self._end():
            with suppress(Empty):
                while True:
                    result, call = self._calls.get(timeout=self._linger)
                    if not result.set_running_or_notify_cancel():
                        continue
                    try:
                        result.set_result(call())
                    except BaseException as error:  # noqa: BLE001 -- raised again where it is awaited
                        result.set_exception(error)

    def _end(self) -> bool:
        """Whether the queue is empty; then no call is accepted any more."""
        with self._lock:
            self._ended = self._calls.empty()
            return self._ended


def begin(call: Callable[[], T], idle: list[WorkerThread], linger: float) -> tuple[WorkerThread, Future[T]]:
    """Start a call in one of the `idle` threads, otherwise in a new one."""
    while True:
        thread = idle.pop() if idle else WorkerThread(linger)
        result = thread.take(call)
        if result is not None:
            return thread, result


def _ends_within(begun: Future[T], seconds: float) -> bool:
    """Whether a call ends so soon. Blocks the event loop until then."""
    if not seconds:
        return False
    try:
        begun.exception(seconds)
    except TimeoutError:
        return False
    return True


class StuckError(Exception):
    """A call did not return in time; the message gives the limit."""


class Offload:
    """Runs blocking calls in threads. While `most` threads hang, further calls fail.

    A thread stays for `linger` seconds after its call: starting one takes 0.1 ms, and sometimes 4 ms when
    another thread holds the interpreter.

    The event loop itself waits for the first `in_place` seconds of a call. The result of a call that takes
    0.05 ms is there after 0.02 ms more; by way of the event loop's queue and selector after 0.15 ms.
    """

    def __init__(self, most: int = 4, *, linger: float = 0.0, in_place: float = 0.0) -> None:
        self._most = most
        self._linger = linger
        self._in_place = in_place
        self._idle: list[WorkerThread] = []
        self._stuck: set[WorkerThread] = set()

    async def run(self, call: Callable[[], T], *, limit: float) -> T:
        """Run `call()` in a thread. Raises its exception, and StuckError after `limit` seconds."""
        self._stuck = {stuck for stuck in self._stuck if stuck.is_alive()}
        if len(self._stuck) >= self._most:
            raise StuckError("an earlier call still hangs")
        thread, begun = begin(call, self._idle, self._linger)
        result = begun if _ends_within(begun, self._in_place) else asyncio.wrap_future(begun)
        try:
            if isinstance(result, asyncio.Future):
                # Not asyncio.timeout: the call itself may raise TimeoutError.
                await asyncio.wait({result}, timeout=limit)
            if not result.done():
                thread.leave()
                self._stuck.add(thread)
                raise StuckError(f"no answer within {limit:g} s")
        finally:
            result.cancel()
        if self._linger:
            self._idle.append(thread)
        return result.result()
