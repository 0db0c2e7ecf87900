"""Records the mapping into history and answers queries.

Observes every refresh without delaying it: polls wait in a short queue for the one thread that keeps the
journal and writes it. Polls without changes are written every HEARTBEAT seconds, so that coverage is known
should the process be killed.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from exporter.history.archive import Archive, HistoryStatus, QueryMoment
from exporter.history.coverage import EVENT_LAG, PollRecord, PollSequence, PollTimes
from exporter.history.feed import HistoryFeed
from exporter.history.query import HistoryQuery, HistoryResult
from exporter.history.record import RecordedHoldings
from exporter.history.store import QueryTimeout, StoreError
from exporter.mapping.holdings import HoldingChanges, OpenHoldings
from exporter.mapping.state import State, StateStore
from exporter.refresh.protocols import Trigger
from runtime.clock import Clock
from runtime.log import Episode, Log

HEARTBEAT: Final = 10.0
"""Seconds after which unchanged coverage is written."""
_SOON: Final = 2.0
"""The same in the first moments of a process, while missing holdings are in doubt."""
_BETWEEN_STEPS: Final = 0.05
"""Seconds between two steps of maintenance, which belong to the event loop and to queries."""

WAITING_POLLS: Final = 16
"""Polls that wait while the disk does not answer; more are merged, which widens the bounds of their rows."""

WAITING_DEVICES: Final = 32_000
"""Devices of the mappings that wait. Where all of them changed, each takes about 1 KiB."""

WAITING_QUERIES: Final = 8
"""Queries that wait at the same time."""

ANSWER_WITHIN: Final = 5.0
"""Seconds within which a query is answered or refused."""

_CLOSE_WITHIN: Final = 1.0
_BEAT: Final = 0.25
_LATE: Final = 0.15
"""Seconds: how often the event loop is checked, and how late the check may be."""
_PROMPT: Final = 0.2
"""Seconds from a trigger to the call of List, unless the loop or the kubelet is slow."""
_CALM: Final = 60.0

_log = Log("history")

T = TypeVar("T")


class HistoryUnavailable(Exception):  # noqa: N818 -- an answer, not a defect
    """History cannot be queried at the moment; the message says why."""


class HoldingRestorer(Protocol):
    """Takes over the starts of holdings: the refresh loop."""

    def restore(self, recorded: OpenHoldings, /) -> None:
        """Take over the starts from history."""
        ...


class _WaitingPoll(Struct, frozen=True):
    """A poll, and the state that it found."""

    poll: PollRecord
    state: State


class HistoryRecorder:
    """Implements the refresh loop's Observer. `run` is an actor; call `find` from the event loop."""

    def __init__(
        self,
        archive: Archive,
        states: StateStore,
        *,
        node: str,
        clock: Clock,
        patience: float,
        inotify: Callable[[], bool],
    ) -> None:
        """`patience`: seconds between two polls that leave no gap. `inotify`: whether file events arrive at
        once.
        """
        self._archive = archive
        self._states = states
        self._feed = HistoryFeed(node)
        self._clock = clock
        self._patience = patience
        self._inotify = inotify
        self._sequence = PollSequence(patience)
        self._waiting: deque[_WaitingPoll] = deque()
        self._unchanged: PollTimes | None = None
        self._generation = 0
        self._taken_at: float | None = None
        self._began_at: float | None = None
        self._stalled_at = -math.inf
        self._wake = asyncio.Event()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        self._opened = asyncio.Event()
        self._closed = False
        self._queries = 0
        self._failing = Episode(_log, "history failed", calm=_CALM)

    @property
    def condition(self) -> HistoryStatus:
        """The present condition."""
        return self._archive.condition

    def failed(self, method: str, code: str) -> None:
        """Do nothing: `refreshed` sees the failure in the state."""

    def changed(self, state: State, changes: HoldingChanges) -> None:
        """Note the start that the mapping gives to the holdings that began."""
        if changes.change.began:
            self._began_at = changes.since[changes.change.began[0]].at
        elif state.generation == 1 and changes.since:
            self._began_at = max(since.at for since in changes.since.values())

    def refreshed(self, triggers: Iterable[Trigger], seconds: float) -> None:
        """Record the poll, if it was good."""
        state = self._states.state
        began_at, self._began_at = self._began_at, None
        if state.taken_at is None or state.taken_at == self._taken_at:
            self._sequence.fail()
            return
        self._taken_at = state.taken_at
        if began_at is None or began_at < state.taken_at:
            began_at = self._clock.now()
        times = PollTimes(state.taken_at, max(state.taken_at, began_at), self._clock.monotonic())
        by_event = (
            Trigger.ALLOCATION in triggers and self._inotify() and self._prompt(state.taken_at, seconds)
        )
        poll = self._sequence.add(times, by_event=by_event)
        if state.generation == self._generation and poll.gap is None:
            self._unchanged = times
        else:
            self._put(poll, state)

    def reread(self) -> None:
        """Record the last poll again: more is known of its holders."""
        state = self._states.state
        if state.generation == self._generation or state.taken_at != self._taken_at:
            return
        poll = self._sequence.again()
        if poll is not None:
            self._put(poll, state)

    def _prompt(self, asked: float, seconds: float) -> bool:
        """Whether the trigger was handled at once: neither this process nor the kubelet stood still."""
        waited = asked - (self._clock.now() - seconds)
        running = asyncio.get_running_loop().time() - self._stalled_at
        return waited <= _PROMPT and running > EVENT_LAG + _BEAT

    async def _beat(self) -> None:
        """Notice when the event loop stands still (SIGSTOP, an overloaded machine): events wait then."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(_BEAT)
            if loop.time() - before > _BEAT + _LATE:
                self._stalled_at = loop.time()

    def _put(self, poll: PollRecord, state: State) -> None:
        """Queue a poll. If the queue is full it replaces the last one, whose own changes are lost."""
        self._generation, self._unchanged = state.generation, None
        devices = sum([len(one.state.snapshot.devices) for one in self._waiting])
        if len(self._waiting) >= WAITING_POLLS or devices >= WAITING_DEVICES:
            last = self._waiting.pop().poll
            poll = replace(poll, before=last.before, gap=last.gap or poll.gap, by_event=False)
        self._waiting.append(_WaitingPoll(poll, state))
        self._wake.set()

    async def run(self, restorer: HoldingRestorer) -> None:
        """Record until cancelled; `restorer` gets the starts of open holdings."""
        beat = asyncio.create_task(self._beat())
        try:
            rows = await self._in_thread(self._archive.open)
            self._opened.set()
            restorer.restore(RecordedHoldings(rows))
            moves = self._archive.moves
            while True:
                more = await asyncio.shield(self._write())
                if self._archive.moves != moves:
                    moves = self._archive.moves
                    # In the thread that keeps the journal: a query may write polls meanwhile.
                    rows = await self._in_thread(self._archive.open_rows)
                    restorer.restore(RecordedHoldings(rows))
                await self._pause(more=more)
        finally:
            beat.cancel()
            self._closed = True
            await self._end()

    async def _pause(self, *, more: bool) -> None:
        idle = _SOON if self._archive.doubting else HEARTBEAT
        try:
            async with asyncio.timeout(_BETWEEN_STEPS if more else idle):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    def _write(self) -> asyncio.Future[bool]:
        """Give all waiting polls to the thread. It writes them even if the caller is cancelled."""
        polls, unchanged = self._waiting, self._unchanged
        self._waiting, self._unchanged = deque(), None

        def filled() -> Iterator[PollRecord]:
            while polls:  # a mapping that is recorded is let go
                one = polls.popleft()
                yield self._feed.filled(one.poll, one.state)

        def work() -> bool:
            try:
                self._archive.take(filled(), unchanged)
                more = self._archive.maintain()
            except Exception as error:  # noqa: BLE001 -- history must never end the process
                self._failing.failed(f"{type(error).__name__}: {error}", level="error")
                # The journal may lack these polls: the next one is recorded whole, changed or not.
                self._feed.forget()
                self._generation = -1
                return False
            self._failing.recovered()
            return more

        return asyncio.wrap_future(self._worker.submit(work))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    async def find(self, query: HistoryQuery) -> HistoryResult:
        """Answer `query`. Raises HistoryUnavailable."""
        if self._closed:
            raise HistoryUnavailable("the exporter is ending")
        if self._queries >= WAITING_QUERIES:
            raise HistoryUnavailable("too many questions are waiting")
        self._queries += 1
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await self._opened.wait()
                sequence = self._sequence
                now = QueryMoment(sequence.last, sequence.failing, self._clock.now(), self._patience)
                if self._waiting:
                    await asyncio.shield(self._write())
                return await self._in_thread(lambda: self._archive.find(query, now))
        except TimeoutError:
            raise HistoryUnavailable(f"no answer within {ANSWER_WITHIN:g} s: is the disk slow?") from None
        except (StoreError, QueryTimeout) as error:
            raise HistoryUnavailable(str(error)) from error
        finally:
            self._queries -= 1

    async def _end(self) -> None:
        """Write what waits, if the disk is fast enough."""
        self._write()
        closing = asyncio.wrap_future(self._worker.submit(self._archive.close))
        self._worker.shutdown(wait=False)
        try:
            async with asyncio.timeout(_CLOSE_WITHIN):
                await asyncio.shield(closing)
        except TimeoutError:
            _log.warn("history could not be closed in time", seconds=_CLOSE_WITHIN)
