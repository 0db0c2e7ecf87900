"""Blocking calls in daemon threads, bounded in time: single calls (`Offload`) and probes (`ProbeRunner`).

A call can hang for good (a dead network file system, a faulty driver). Its thread is then abandoned: as a
daemon it delays neither the process nor its end. The number of abandoned threads is limited.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from plugin.serving.probes import Question

T = TypeVar("T")


class _Thread(threading.Thread):
    """Runs calls one after another, and ends after `linger` seconds without one."""

    def __init__(self, linger: float = 0.0) -> None:
        super().__init__(name="blocking", daemon=True)
        self._linger = linger
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._ended = False

    def take(self, call: Callable[[], T]) -> "asyncio.Future[T] | None":
        """Queue a call; None if the thread has ended."""
        result: Future[T] = Future()
        with self._lock:
            if self._ended:
                return None
            self._calls.put((result, call))
            if self.ident is None:
                self.start()
        return asyncio.wrap_future(result)

    def leave(self) -> None:
        """End after the current call."""
        self._linger = 0.0

    def run(self) -> None:
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


def _begin(call: Callable[[], T], idle: list[_Thread], linger: float) -> "tuple[_Thread, asyncio.Future[T]]":
    """Start a call in one of the `idle` threads, otherwise in a new one."""
    while True:
        thread = idle.pop() if idle else _Thread(linger)
        result = thread.take(call)
        if result is not None:
            return thread, result


class StuckError(Exception):
    """A call did not return in time; the message gives the limit."""


class Offload:
    """Runs blocking calls in threads. While `most` threads hang, further calls fail.

    A thread stays for `linger` seconds after its call: starting one takes 0.1 ms, and sometimes 4 ms when
    another thread holds the interpreter.
    """

    def __init__(self, most: int = 4, *, linger: float = 0.0) -> None:
        self._most = most
        self._linger = linger
        self._idle: list[_Thread] = []
        self._stuck: set[_Thread] = set()

    async def run(self, call: Callable[[], T], *, limit: float) -> T:
        """Run `call()` in a thread. Raises its exception, and StuckError after `limit` seconds."""
        self._stuck = {stuck for stuck in self._stuck if stuck.is_alive()}
        if len(self._stuck) >= self._most:
            raise StuckError("an earlier call still hangs")
        thread, result = _begin(call, self._idle, self._linger)
        try:
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


MOST_THREADS: Final = 8
"""Threads of one resource that run probes at the same time."""
MOST_HANGING: Final = 16
"""Abandoned threads of one resource."""
STALL: Final = 0.05
"""Seconds of one probe after which another thread continues with the rest."""

Answered = Callable[[Question, str], None]


class ProbeRunner:
    """Runs the probes of one resource. A probe that hangs fails, and does not run again before it returns."""

    def __init__(self) -> None:
        self._hanging: dict[tuple[str, int], _Thread] = {}

    async def run(self, asked: Sequence[Question], answered: Answered) -> None:
        """Run probes, and call `answered` with each and why it fails, or an empty text, as they end."""
        self._hanging = {key: thread for key, thread in self._hanging.items() if thread.is_alive()}
        rest: deque[Question] = deque()
        for question in asked:
            if (question.device, question.probe) in self._hanging:
                answered(question, f"{question.place}: still no answer")
            else:
                rest.append(question)
        batches: set[_Batch] = set()
        try:
            while rest or batches:
                if rest and len(batches) < MOST_THREADS and all(batch.stalled for batch in batches):
                    if len(self._hanging) < MOST_HANGING:
                        batches.add(_Batch(rest))
                    elif not batches:
                        self._refuse(rest, answered)
                        continue
                ends = {batch.end for batch in batches}
                await asyncio.wait(ends, timeout=STALL, return_when=asyncio.FIRST_COMPLETED)
                for batch in tuple(batches):
                    self._collect(batch, batches, answered)
        finally:
            rest.clear()
            for batch in batches:
                batch.end.cancel()

    def _collect(self, batch: "_Batch", batches: set["_Batch"], answered: Answered) -> None:
        """Report the results of a batch; abandon the batch if its current probe hangs."""
        finished = batch.end.done()
        while batch.answers:
            answered(*batch.answers.popleft())
        late = None if finished else batch.late()
        if late is not None:
            batch.end.cancel()
            self._hanging[late.device, late.probe] = batch.thread
            answered(late, f"{late.place}: no answer within {late.timeout:g} s")
        if finished or late is not None:
            batches.remove(batch)

    def _refuse(self, rest: deque[Question], answered: Answered) -> None:
        while rest:
            question = rest.popleft()
            answered(question, f"{question.place}: not asked, {len(self._hanging)} others have not answered")


class _Batch:
    """Probes that one thread runs one after another, until none is left or one exceeds its time."""

    def __init__(self, rest: deque[Question]) -> None:
        self.answers: deque[tuple[Question, str]] = deque()
        self._rest = rest
        self._lock = threading.Lock()
        self._current: Question | None = None
        self._since = time.monotonic()
        self._given_up = False
        self.thread, self.end = _begin(self._run, [], 0.0)

    @property
    def stalled(self) -> bool:
        """Whether its current probe has run for `STALL` seconds."""
        return time.monotonic() - self._since >= STALL

    def late(self) -> Question | None:
        """The probe that exceeded its time; its result is then ignored."""
        with self._lock:
            question = self._current
            # A program is killed at its own limit, and its message is better: wait a little longer.
            if question is None or time.monotonic() - self._since < question.timeout + STALL:
                return None
            self._given_up = True
            return question

    def _run(self) -> None:
        while True:
            try:
                question = self._rest.popleft()
            except IndexError:
                return
            with self._lock:
                self._current, self._since = question, time.monotonic()
            try:
                reason = question.ask() if question.ask is not None else ""
            except Exception as error:  # noqa: BLE001 -- any exception is a failure
                reason = f"{question.place}: {type(error).__name__}: {error}"
            with self._lock:
                if self._given_up:
                    return
                self._current = None
                self.answers.append((question, reason))
