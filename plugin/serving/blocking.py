"""Blocking looks at the host in threads of their own, bounded in time.

A look may hang for good (a dead network file system, a driver's fault). Then its thread is left
behind, as a daemon, so that it holds up neither the process nor its end; and it is not joined by
ever more threads that hang at the same place.

Many blocking questions, each bounded in time: one that hangs has failed, and holds up no other.

A thread that hangs is left behind, and what it hangs at is not asked again before it has come back.
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
    """A look that did not come back in time; the message says for how long."""


class Offload:
    """Threads for one resource's looks. No more are begun while `most` hang.

    A thread stays for `linger` seconds after its look: to begin one anew takes a tenth of a millisecond,
    and now and then four, for the interpreter is handed on.
    """

    def __init__(self, most: int = 4, *, linger: float = 0.0) -> None:
        self._most = most
        self._linger = linger
        self._idle: list[_Thread] = []
        self._stuck: set[_Thread] = set()

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


class _Thread(threading.Thread):
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


MOST_THREADS: Final = 8
"""Threads of one resource that work at the same time."""
MOST_HANGING: Final = 16
"""Threads of one resource that may be left behind."""
STALL: Final = 0.05
"""Seconds with one question after which another thread goes on with the rest."""

Answered = Callable[[Question, str], None]


class ProbeRunner:
    """Asks the questions of one resource."""

    def __init__(self) -> None:
        self._hanging: dict[tuple[str, int], _Worker] = {}

    async def ask(self, asked: Sequence[Question], answered: Answered) -> None:
        """Ask, and call `answered` with each question and why it fails, as the answers come."""
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
                    self._look_at(worker, workers, answered)
        finally:
            rest.clear()

    def _look_at(self, worker: "_Worker", workers: set["_Worker"], answered: Answered) -> None:
        """Pass on what it was answered; leave it behind where it hangs."""
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
    """Asks one question after another until none is left, or until it was too late with one."""

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
        """Whether there is nothing left for it."""
        self.start()

    @property
    def stalled(self) -> bool:
        """Whether it has been with one question for a while."""
        return time.monotonic() - self._since >= STALL

    def late(self) -> Question | None:
        """The question that has not been answered in time; from then on its answer is nobody's."""
        with self._lock:
            question = self._current
            # A program has its own limit, and is ended at it: a little later it is told more of it.
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
            except Exception as error:  # noqa: BLE001 -- whatever it is, it is no good answer
                reason = f"{question.place}: {type(error).__name__}: {error}"
            with self._lock:
                if self._given_up:
                    return
                self._current = None
                self.answers.append((question, reason))
        # RuntimeError: the loop has ended meanwhile, and with it who waited.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)
