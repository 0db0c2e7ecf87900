"""Many blocking questions, each bounded in time: one that hangs has failed, and holds up no other.

A thread that hangs is left behind, and what it hangs at is not asked again before it has come back.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from plugin.discovery.probes import Question

MOST_THREADS: Final = 8
"""Threads of one resource that work at the same time."""
MOST_HANGING: Final = 16
"""Threads of one resource that may be left behind."""
STALL: Final = 0.05
"""Seconds with one question after which another thread goes on with the rest."""

Answered = Callable[[Question, str], None]


class Asking:
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
