"""The refresh loop: one at a time, as soon as there is a reason, never more often than is fair.

Reasons are coalesced: the first acts at once, those that come while it is under way share the next
one. The kubelet's limit of 100 calls a second is shared by all its clients, so List is called at
most every SPACING seconds. A refresh that failed keeps the last good snapshot and is tried again
soon, with growing, jittered pauses.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Final, Protocol

import grpc

from daemon.log import Episode, Log
from exporter.core.holdings import Step
from exporter.core.state import Failure, Freshness, State
from exporter.kubelet.client import DOUBT, KubeletError, Raw
from exporter.services.board import Board
from exporter.services.clock import SteadyClock
from exporter.services.understanding import UNSETTLED, News, Understanding

SPACING: Final = 0.05
"""Least seconds between two calls of List: at most 20 a second."""

SETTLING: Final = (0.2, 1.0)
"""Seconds after a registration at which allocatable is asked again: the kubelet makes room for a new
plugin's devices only when their first list has arrived, and tells nobody.
"""

_FIRST_RETRY: Final = 0.1
_UNSETTLED_RETRY: Final = 0.2

_log = Log("refresh")


class Trigger(Enum):
    """Why a refresh is made."""

    START = "start"
    TIMER = "timer"
    ALLOCATION = "allocation"
    """The device manager wrote its checkpoint."""
    REGISTRATION = "registration"
    """A plugin's or the kubelet's socket came or went."""
    SOCKET = "socket"
    """The PodResources socket came or went."""
    SETTLING = "settling"
    RETRY = "retry"


class Source(Protocol):
    """The kubelet, as the loop needs it."""

    async def fetch_raw(self, *, allocatable: bool) -> Raw:
        """Its answers. Raises KubeletError."""
        ...

    async def reset(self) -> None:
        """Forget the connection."""
        ...


class Observer(Protocol):
    """Who counts what the loop does."""

    def refreshed(self, triggers: Iterable[Trigger], seconds: float) -> None:
        """A refresh that `triggers` asked for ended, well or badly, after `seconds`."""
        ...

    def failed(self, method: str, code: str) -> None:
        """A refresh failed."""
        ...

    def stepped(self, state: State, step: Step) -> None:
        """A good refresh brought these changes and led to this state."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """The loop's times, in seconds: `interval` between full refreshes at the latest; `stale_after` is the age
    at which the mapping is no longer told to Prometheus.
    """

    interval: float
    stale_after: float
    spacing: float = SPACING
    settling: tuple[float, ...] = SETTLING


class Refresher:
    """Runs the loop. `trigger` from anywhere in the event loop's thread; `run` as an actor."""

    def __init__(
        self,
        source: Source,
        board: Board,
        observer: Observer,
        *,
        timing: Timing,
        clock: SteadyClock,
        cpu_numa: Mapping[int, int],
    ) -> None:
        """`cpu_numa` maps CPUs to NUMA nodes; pauses are the event loop's own."""
        self._source = source
        self._board = board
        self._observer = observer
        self._timing = timing
        self._clock = clock
        self._understanding = Understanding(cpu_numa)
        self._wanted: dict[Trigger, None] = {}
        self._wake = asyncio.Event()
        self._reset = False
        self._failures = 0
        self._hold_off_until = 0.0
        self._listed_at = 0.0
        self._doubtful_until = 0.0
        self._full_at = 0.0
        self._needs_full = True
        self._episode = Episode(_log, "the kubelet does not tell who holds what")
        self._stale = Episode(_log, "the mapping is stale and no longer told to Prometheus")

    def trigger(self, cause: Trigger) -> None:
        """Ask for a refresh. Never blocks; reasons that wait are merged."""
        if cause is Trigger.SOCKET:
            self._reset = True
            # At the start there is nothing yet that could be missing.
            if self._board.state.taken_at is not None:
                self._doubt()
        self._wanted[cause] = None
        self._wake.set()

    def _doubt(self) -> None:
        self._doubtful_until = asyncio.get_running_loop().time() + DOUBT

    async def run(self) -> None:
        """Refresh until cancelled."""
        loop = asyncio.get_running_loop()
        worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._full_at = loop.time()
        try:
            self.trigger(Trigger.START)
            while True:
                await self._due()
                called = loop.time()
                causes = tuple(self._wanted)
                self._wanted.clear()
                self._wake.clear()
                await self._refresh(causes, worker)
                self._observer.refreshed(causes, loop.time() - called)
                self._look_again_after(causes)
                await self._space()
        finally:
            # Not waited for: an answer that is still being read must not hold up the event loop's end.
            worker.shutdown(wait=False, cancel_futures=True)

    async def _space(self) -> None:
        """Wait until List may be called again."""
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, self._listed_at + self._timing.spacing - now))

    async def _due(self) -> None:
        """Wait for a reason. The timer is one, also when others never cease; after a failure, another try
        is. Where the kubelet's rate limit was reached no reason is good enough before the pause is over.
        """
        loop = asyncio.get_running_loop()
        if self._hold_off_until > loop.time():
            await asyncio.sleep(self._hold_off_until - loop.time())
            self._wanted[Trigger.RETRY] = None
            return
        if self._failures:
            pause, cause = self._retry_pause(), Trigger.RETRY
        else:
            due = self._full_at + self._timing.interval
            pause, cause = max(0.0, due - loop.time()), Trigger.TIMER
        if pause > 0:
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                self._wanted[cause] = None
        else:
            self._wanted[cause] = None

    def _retry_pause(self) -> float:
        failure = self._board.state.failure
        if failure is not None and failure.code == UNSETTLED:
            return _UNSETTLED_RETRY
        ceiling = min(self._timing.interval, _FIRST_RETRY * 2.0 ** min(self._failures - 1, 10))
        return ceiling * random.uniform(0.5, 1.0)  # noqa: S311 -- jitter

    def _look_again_after(self, causes: tuple[Trigger, ...]) -> None:
        if not {Trigger.REGISTRATION, Trigger.SOCKET}.isdisjoint(causes):
            loop = asyncio.get_running_loop()
            for delay in self._timing.settling:
                loop.call_later(delay, self.trigger, Trigger.SETTLING)

    async def _refresh(self, causes: tuple[Trigger, ...], worker: ThreadPoolExecutor) -> None:
        full = self._needs_full or causes != (Trigger.ALLOCATION,)
        self._needs_full = True
        try:
            if self._reset:
                self._reset = False
                await self._source.reset()
            if not await self._ask(worker, allocatable=full):
                await self._space()
                full = await self._ask(worker, allocatable=True)
            self._needs_full = False
        except KubeletError as error:
            if error.code == grpc.StatusCode.UNAVAILABLE.name:
                self._doubt()
            self._fail(Failure(error.method, error.code, error.message, self._clock.now()))
            if error.rate_limited:
                self._hold_off_until = asyncio.get_running_loop().time() + self._retry_pause()
        except Exception as error:  # noqa: BLE001 -- an answer nobody foresaw must not end the process
            self._fail(Failure("List", "INTERNAL", f"{type(error).__name__}: {error}", self._clock.now()))
        if full:
            self._full_at = asyncio.get_running_loop().time()

    async def _ask(self, worker: ThreadPoolExecutor, *, allocatable: bool) -> bool:
        """Ask and publish. False if List alone was not enough to tell."""
        loop = asyncio.get_running_loop()
        asked = self._listed_at = loop.time()
        raw = await self._source.fetch_raw(allocatable=allocatable)
        doubtful = loop.time() < self._doubtful_until
        read = partial(self._understanding.read, raw, self._clock.wall(), doubtful=doubtful)
        news = await loop.run_in_executor(worker, read)
        if news is None:
            return False
        # Together with the state that it dates: an age must not be measured by two clocks.
        self._clock.set_right()
        asked_at = self._clock.now() - (loop.time() - asked)
        self._publish(raw, news, asked_at)
        return True

    def _publish(self, raw: Raw, news: News, asked_at: float) -> None:
        self._failures = 0
        self._episode.recovered()
        self._stale.recovered()
        state = self._board.state
        for note in raw.notes:
            if note not in state.notes:
                _log.warn(note)
        state = replace(state, taken_at=asked_at, failure=None, api_version=raw.api_version, notes=raw.notes)
        if news.snapshot is not state.snapshot:
            state = replace(
                state,
                generation=state.generation + 1,
                snapshot=news.snapshot,
                changed_at=asked_at,
                since=news.since,
                anomalies=news.anomalies,
            )
        self._board.publish(state)
        if news.step is not None:
            self._observer.stepped(state, news.step)

    def _fail(self, failure: Failure) -> None:
        self._failures += 1
        self._observer.failed(failure.method, failure.code)
        self._episode.failed(f"{failure.method}: {failure.code}: {failure.message}")
        state = self._board.state
        if state.freshness(self._clock.now(), self._timing.stale_after) is Freshness.STALE:
            self._stale.failed(f"older than {self._timing.stale_after:g} s", level="error")
        if state.failure is not None:
            failure = replace(failure, since=state.failure.since)
        if failure != state.failure:
            self._board.publish(replace(state, failure=failure))
