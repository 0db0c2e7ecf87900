"""The historian: follows the mapping into history, and answers for it.

Told of every refresh, it never holds one up: looks wait in a short queue for the one thread that keeps the
book and writes it. A look that showed nothing new is written now and then, so that it is known until when
it was looked should the process die.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from exporter.history.archive import Archive, HistoryStatus, QueryMoment
from exporter.history.coverage import EVENT_LAG, PollRecord, PollSequence, PollTimes
from exporter.history.query import HistoryQuery, HistoryResult
from exporter.history.record import RecordedHoldings, present
from exporter.history.store import QueryTimeout, StoreError
from exporter.mapping.holdings import HoldingChanges, OpenHoldings
from exporter.mapping.identity import UNKNOWN, Workload
from exporter.mapping.model import Holder
from exporter.mapping.state import State, StateStore
from exporter.refresh.protocols import Trigger
from runtime.clock import Clock
from runtime.log import Episode, Log

HEARTBEAT: Final = 10.0
"""Seconds after which it is written that it was looked, should nothing have changed."""
_SOON: Final = 2.0
"""The same while it is in doubt who has gone: in the first moments of a process."""

WAITING_LOOKS: Final = 16
"""Looks that wait while the disk does not answer; more are put together, which makes bounds wider."""

WAITING_QUESTIONS: Final = 8
"""Questions that wait for their answer at the same time."""

ANSWER_WITHIN: Final = 5.0
"""Seconds in which a question is answered, or not at all."""

_CLOSE_WITHIN: Final = 1.0
_BEAT: Final = 0.25
_LATE: Final = 0.15
"""Seconds: how often it is seen that the event loop runs, and how late that may be."""
_PROMPT: Final = 0.2
"""Seconds within which a refresh asks for the answer that it publishes, where the kubelet is not slow."""
_CALM: Final = 60.0

_log = Log("history")

T = TypeVar("T")


class HistoryUnavailable(Exception):  # noqa: N818 -- an answer to whoever asked
    """History cannot be asked at the moment; the message says why."""


class HoldingRestorer(Protocol):
    """Who tells since when something is held."""

    def restore(self, recorded: OpenHoldings) -> None:
        """Take over what history knows."""
        ...


class HistoryRecorder:
    """Implements the refresh loop's Observer; `run` as an actor, `find` from the event loop."""

    def __init__(
        self,
        archive: Archive,
        states: StateStore,
        *,
        node: str,
        clock: Clock,
        steady: Callable[[], float],
        patience: float,
        inotify: Callable[[], bool],
    ) -> None:
        """`patience`: seconds between two looks that still follow one another. `inotify`: whether events tell
        of allocations at once.
        """
        self._archive = archive
        self._board = states
        self._node = node
        self._clock = clock
        self._steady = steady
        self._patience = patience
        self._inotify = inotify
        self._sight = PollSequence(patience)
        self._looks: deque[PollRecord] = deque()
        self._latest: PollTimes | None = None
        self._generation = 0
        self._taken_at: float | None = None
        self._began_at: float | None = None
        self._stalled_at = -math.inf
        self._wake = asyncio.Event()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        self._opened = asyncio.Event()
        self._closed = False
        self._asking = 0
        self._failure = Episode(_log, "history failed", calm=_CALM)

    @property
    def condition(self) -> HistoryStatus:
        """How history is at this moment."""
        return self._archive.condition

    def failed(self, method: str, code: str) -> None:
        """Part of Observer: `refreshed` sees it by the state."""

    def changed(self, state: State, step: HoldingChanges) -> None:
        """Part of Observer: what began in this step is dated as the mapping dates it."""
        if step.change.began:
            self._began_at = step.since[step.change.began[0]].at
        elif state.generation == 1 and step.since:
            self._began_at = max(since.at for since in step.since.values())

    def refreshed(self, triggers: Iterable[Trigger], seconds: float) -> None:
        """Part of Observer: a refresh ended, and the states has what came of it."""
        state = self._board.state
        began_at, self._began_at = self._began_at, None
        if state.taken_at is None or state.taken_at == self._taken_at:
            self._sight.fail()
            return
        self._taken_at = state.taken_at
        if began_at is None or began_at < state.taken_at:
            began_at = self._clock.now()
        answered = max(state.taken_at, began_at)
        times = PollTimes(state.taken_at, answered, self._steady())
        changed = state.generation != self._generation
        self._generation = state.generation
        found = present(state.snapshot, _workloads(state), self._node) if changed else None
        told = Trigger.ALLOCATION in triggers and self._inotify() and self._prompt(state.taken_at, seconds)
        look = self._sight.look(times, found, told=told)
        if look.present is None and look.gap is None:
            self._latest = times
            return
        self._put(look)
        self._wake.set()

    def reread(self) -> None:
        """Part of Observer: what the last look showed is known better, such as whose uid it is."""
        state = self._board.state
        if state.generation == self._generation or state.taken_at != self._taken_at:
            return
        look = self._sight.again(present(state.snapshot, _workloads(state), self._node))
        if look is not None:
            self._generation = state.generation
            self._put(look)
            self._wake.set()

    def _prompt(self, asked: float, seconds: float) -> bool:
        """Whether an event was acted upon as it came: this process and the kubelet did not stand still."""
        waited = asked - (self._clock.now() - seconds)
        standing = asyncio.get_running_loop().time() - self._stalled_at
        return waited <= _PROMPT and standing > EVENT_LAG + _BEAT

    async def _beat(self) -> None:
        """Notice when the event loop stood still (SIGSTOP, a machine without time): events waited then."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(_BEAT)
            if loop.time() - before > _BEAT + _LATE:
                self._stalled_at = loop.time()

    def _put(self, look: PollRecord) -> None:
        """Have a look wait. One too many takes the place of the last: what was seen in between is lost."""
        self._latest = None
        if len(self._looks) >= WAITING_LOOKS:
            last = self._looks.pop()
            shown = look.present if look.present is not None else last.present
            look = PollRecord(look.times, last.before, last.gap or look.gap, present=shown)
        self._looks.append(look)

    async def run(self, remembers: HoldingRestorer) -> None:
        """Keep history until cancelled; `remembers` is told since when things are held."""
        beat = asyncio.create_task(self._beat())
        try:
            rows = await self._in_thread(self._archive.open)
            self._opened.set()
            remembers.restore(RecordedHoldings(rows))
            places = self._archive.places
            while True:
                more = await asyncio.shield(self._hand_over())
                if self._archive.places != places:
                    places = self._archive.places
                    # In the thread that writes the book: whoever asks has looks taken in meanwhile.
                    rows = await self._in_thread(self._archive.open_rows)
                    remembers.restore(RecordedHoldings(rows))
                if not more:
                    await self._pause()
        finally:
            beat.cancel()
            self._closed = True
            await self._end()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_SOON if self._archive.doubting else HEARTBEAT):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    def _hand_over(self) -> asyncio.Future[bool]:
        """Give the thread what waits. Once given it is done, whoever waits for it."""
        looks, latest = tuple(self._looks), self._latest
        self._looks.clear()
        self._latest = None

        def work() -> bool:
            try:
                self._archive.take(looks, latest)
                more = self._archive.tend()
            except Exception as error:  # noqa: BLE001 -- history must never end the process
                self._failure.failed(f"{type(error).__name__}: {error}", level="error")
                return False
            self._failure.recovered()
            return more

        return asyncio.wrap_future(self._worker.submit(work))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    async def find(self, question: HistoryQuery) -> HistoryResult:
        """The answer to `question`. Raises HistoryUnavailable."""
        if self._closed or self._asking >= WAITING_QUESTIONS:
            raise HistoryUnavailable(
                "too many questions are waiting" if not self._closed else "the exporter is ending"
            )
        self._asking += 1
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await self._opened.wait()
                now = QueryMoment(self._sight.last, self._sight.failing, self._clock.now(), self._patience)
                if self._looks:
                    await asyncio.shield(self._hand_over())
                return await self._in_thread(lambda: self._archive.find(question, now))
        except TimeoutError:
            raise HistoryUnavailable(f"no answer within {ANSWER_WITHIN:g} s: is the disk slow?") from None
        except (StoreError, QueryTimeout) as error:
            raise HistoryUnavailable(str(error)) from error
        finally:
            self._asking -= 1

    async def _end(self) -> None:
        """Write what waits, if the disk lets it."""
        self._hand_over()
        closing = asyncio.wrap_future(self._worker.submit(self._archive.close))
        self._worker.shutdown(wait=False)
        try:
            async with asyncio.timeout(_CLOSE_WITHIN):
                await asyncio.shield(closing)
        except TimeoutError:
            _log.warn("history could not be closed in time", seconds=_CLOSE_WITHIN)


def _workloads(state: State) -> Callable[[Holder], Workload]:
    def workload(holder: Holder) -> Workload:
        identity = state.pods.get((holder.namespace, holder.pod))
        if identity is None or identity.uid != holder.pod_uid:
            return UNKNOWN
        return identity.workload

    return workload
