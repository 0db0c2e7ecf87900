"""Blocking calls in daemon threads, bounded in time: single calls (`Offload`) and probes (`ProbeRunner`).

A call can hang for good (a dead network file system, a faulty driver). Its thread is then abandoned: as a
daemon it delays neither the process nor its end. The number of abandoned threads is limited.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from plugin.serving.probes import Question

T = TypeVar("T")


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
        job = _Job(call)
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

    def _begin(self, job: "_Job[T]") -> "_Thread":
        while self._idle:
            worker = self._idle.pop()
            if worker.take(job):
                return worker
        worker = _Thread(self._linger)
        worker.take(job)
        worker.start()
        return worker


class _Job(Generic[T]):
    """One call."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.done = asyncio.Event()
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._outcome: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._outcome.append(self._call())
        except BaseException as error:  # noqa: BLE001 -- raised again in `run`
            self._error = error
        # RuntimeError: the event loop has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.done.set)

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._outcome[0]


class _Thread(threading.Thread):
    """A thread that runs calls, and ends after `linger` seconds without one."""

    def __init__(self, linger: float) -> None:
        super().__init__(name="blocking", daemon=True)
        self._linger = linger
        self._jobs: SimpleQueue[_Job[Any]] = SimpleQueue()
        self._lock = threading.Lock()
        self._ended = False

    def take(self, job: _Job[Any]) -> bool:
        """Queue a call; False if the thread has ended."""
        with self._lock:
            if not self._ended:
                self._jobs.put(job)
            return not self._ended

    def leave(self) -> None:
        """End after the current call."""
        self._linger = 0.0

    def run(self) -> None:
        while not self._end():
            with suppress(Empty):
                while True:
                    self._jobs.get(timeout=self._linger).run()

    def _end(self) -> bool:
        """Whether the queue is empty; then no call is accepted any more."""
        with self._lock:
            self._ended = self._jobs.empty()
            return self._ended


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
        self._hanging: dict[tuple[str, int], _Worker] = {}

    async def run(self, asked: Sequence[Question], answered: Answered) -> None:
        """Run probes, and call `answered` with each and why it fails, or an empty text, as they end."""
        self._hanging = {key: worker for key, worker in self._hanging.items() if worker.is_alive()}
        rest: deque[Question] = deque()
        for question in asked:
            if (question.device, question.probe) in self._hanging:
                answered(question, f"{question.place}: still no answer")
            else:
                rest.append(question)
        workers: set[_Worker] = set()
        wake = asyncio.Event()
        try:
            while rest or workers:
                if rest and len(workers) < MOST_THREADS and all(w.stalled for w in workers):
                    if len(self._hanging) < MOST_HANGING:
                        workers.add(_Worker(rest, wake))
                    elif not workers:
                        self._refuse(rest, answered)
                        continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(STALL):
                        await wake.wait()
                wake.clear()
                for worker in tuple(workers):
                    self._collect(worker, workers, answered)
        finally:
            rest.clear()

    def _collect(self, worker: "_Worker", workers: set["_Worker"], answered: Answered) -> None:
        """Report its results; abandon it if it hangs."""
        finished = worker.done
        while worker.answers:
            answered(*worker.answers.popleft())
        if finished:
            workers.discard(worker)
            return
        late = worker.late()
        if late is not None:
            workers.discard(worker)
            self._hanging[late.device, late.probe] = worker
            answered(late, f"{late.place}: no answer within {late.timeout:g} s")

    def _refuse(self, rest: deque[Question], answered: Answered) -> None:
        while rest:
            question = rest.popleft()
            answered(question, f"{question.place}: not asked, {len(self._hanging)} others have not answered")


class _Worker(threading.Thread):
    """Runs one probe after another until none is left, or until one exceeds its time."""

    def __init__(self, rest: deque[Question], wake: asyncio.Event) -> None:
        super().__init__(name="probes", daemon=True)
        self.answers: deque[tuple[Question, str]] = deque()
        self._rest = rest
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._current: Question | None = None
        self._since = time.monotonic()
        self._given_up = False
        self.done = False
        """Whether no probe is left for it."""
        self.start()

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

    def run(self) -> None:
        while True:
            try:
                question = self._rest.popleft()
            except IndexError:
                self.done = True
                break
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
        # RuntimeError: the event loop has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)
