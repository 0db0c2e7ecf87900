"""Blocking calls in daemon threads, bounded in time.

A call can hang for good (a dead network file system, a faulty driver). Its thread is then abandoned: as a
daemon it delays neither the process nor its end. The number of abandoned threads is limited.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Call(Generic[T]):
    """A call in a thread. `ended`: it has returned or raised, or was given up before it began."""

    _result: T

    def __init__(self, function: Callable[[], T]) -> None:
        self._function: Callable[[], T] | None = function
        self._error: BaseException | None = None
        self._on_end: Callable[[], object] | None = None
        self._running = threading.Lock()
        self._running.acquire()
        self.ended = False

    def run(self, before_end: Callable[[], None]) -> None:
        """Run it in this thread, call `before_end`, then wake whoever waits for it."""
        try:
            if (function := self._function) is not None:
                self._result = function()
        except BaseException as error:  # noqa: BLE001 -- raised again where it is awaited
            self._error = error
        before_end()
        self.ended = True
        self._running.release()
        if (on_end := self._on_end) is not None:
            with suppress(RuntimeError):  # the event loop is closed
                on_end()

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends so soon. Blocks until then. To be called once."""
        return self._running.acquire(timeout=seconds)

    async def wait(self) -> None:
        """Wait for its end. If that is cancelled before the call has begun, it does not begin."""
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        self._on_end = lambda: loop.call_soon_threadsafe(end.set)
        try:
            if not self.ended:  # asked after `_on_end` is set: the thread does it the other way round
                await end.wait()
        finally:
            self._function = self._on_end = None

    def result(self) -> T:
        """What it returned. Raises its exception."""
        if self._error is not None:
            raise self._error
        return self._result


Calls = SimpleQueue[Call[Any]]
"""The calls of one thread."""


def _run_calls(calls: Calls, idle: list[Calls], linger: float) -> None:
    """Run calls one after another, and end after `linger` seconds without one.

    While the thread waits, `calls` are in `idle`. Either this thread or one that has a call removes them.
    """
    while True:
        try:
            call = calls.get(timeout=linger)
        except Empty:
            with suppress(ValueError):  # removed already: a call is on its way
                idle.remove(calls)
                return
        else:
            call.run(lambda: idle.append(calls))
            del call


def begin(function: Callable[[], T], idle: list[Calls], linger: float) -> Call[T]:
    """Start a call in one of the `idle` threads, otherwise in a new one."""
    call = Call(function)
    try:
        idle.pop().put(call)
    except IndexError:
        calls = Calls()
        calls.put(call)
        thread = threading.Thread(target=_run_calls, args=(calls, idle, linger), name="blocking", daemon=True)
        thread.start()
    return call


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
        self._idle: list[Calls] = []
        self._stuck: list[Call[Any]] = []

    async def run(self, function: Callable[[], T], *, limit: float) -> T:
        """Run `function()` in a thread. Raises its exception, and StuckError after `limit` seconds."""
        self._stuck = [call for call in self._stuck if not call.ended]
        if len(self._stuck) >= self._most:
            raise StuckError("an earlier call still hangs")
        call = begin(function, self._idle, self._linger)
        if not call.ends_within(self._in_place):
            try:
                async with asyncio.timeout(limit):
                    await call.wait()
            except TimeoutError:
                self._stuck.append(call)
                raise StuckError(f"no answer within {limit:g} s") from None
        return call.result()
