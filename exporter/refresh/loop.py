"""The refresh loop: one at a time, as soon as there is a reason, never more often than is fair.

Reasons are coalesced: the first acts at once, those that come while it is under way share the next
one. A refresh that failed keeps the last good snapshot and is tried again soon, with growing, jittered
pauses.

Several who follow the refresh loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import grpc

from exporter.mapping.device_ids import IdReader, read_id
from exporter.mapping.holdings import HoldingChanges, OpenHoldings
from exporter.mapping.identity import NEVER, Poll
from exporter.mapping.restart_guard import DISTRUST
from exporter.mapping.state import Failure, Freshness, State, StateStore
from exporter.refresh.pipeline import UNSETTLED, SnapshotPipeline, Update
from exporter.refresh.protocols import (
    KubeletSource,
    NoPlugins,
    NoPods,
    Observer,
    PluginSource,
    PodSource,
    Trigger,
)
from exporter.refresh.triggers import CallPacer, RefreshTiming
from kubelet.podresources import KubeletError, Raw
from runtime.clock import Clock
from runtime.log import Episode, Log

_CALM: Final = 60.0
"""Seconds for which a failure that lasts is not told again though its reason changes: a kubelet that ends
again and again gives another one each time.
"""
_USUAL_REFUSALS: Final = 3
"""Refusals in a row at the kubelet's rate limit, some 0.5 s, that are not worth a word."""
_SAME_AGE: Final = 0.5
"""Seconds by which two looks at one socket's age may differ."""

_log = Log("refresh")

_OF_LIST: Final = frozenset({Trigger.ALLOCATION, Trigger.PODS})
"""After these allocatable is what it was: List alone is asked."""


class Refresher:
    """Runs the loop. `trigger` from anywhere in the event loop's thread; `run` as an actor."""

    def __init__(
        self,
        source: KubeletSource,
        states: StateStore,
        observer: Observer,
        *,
        timing: RefreshTiming,
        clock: Clock,
        cpu_numa: Mapping[int, int],
        node: str = "",
        witness: PodSource | None = None,
        plugins: PluginSource | None = None,
        reader: IdReader = read_id,
        remarks: Callable[[State], tuple[str, ...]] = lambda _: (),
    ) -> None:
        """`cpu_numa` maps CPUs to NUMA nodes; `node` is this node's name; `reader` reads device ids;
        `remarks` says what else there is to note of a state; pauses are the event loop's own.
        """
        self._source = source
        self._board = states
        self._observer = observer
        self._timing = timing
        self._clock = clock
        self._witness = witness or NoPods()
        self._plugins = plugins or NoPlugins()
        self._remarks = remarks
        self._notes: tuple[str, ...] = ()
        self._understanding = SnapshotPipeline(
            cpu_numa, keep_allocatable=timing.stale_after, reader=reader, node=node
        )
        self._wanted: dict[Trigger, None] = {}
        self._reconsider = False
        self._wake = asyncio.Event()
        self._reset = False
        self._pace = CallPacer(timing)
        self._look = Poll(-NEVER, -NEVER)
        self._returned_at = -NEVER
        self._born_at = -NEVER
        self._full_at = 0.0
        self._needs_full = True
        self._episode = Episode(_log, "the kubelet does not tell who holds what", calm=_CALM)
        self._allocatable = Episode(_log, "the kubelet does not tell what is allocatable", calm=_CALM)
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

    def reconsider(self) -> None:
        """Have the last answer read anew, as something more is known of pods or devices. Never blocks."""
        self._reconsider = True
        self._wake.set()

    def remember(self, recollection: OpenHoldings) -> None:
        """Tell since when things are held as history knows it. Never blocks."""
        self._understanding.remember(recollection)
        self.reconsider()

    def _doubt(self) -> None:
        self._returned_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Refresh until cancelled."""
        loop = asyncio.get_running_loop()
        worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._full_at = loop.time()
        try:
            self.trigger(Trigger.START)
            while True:
                await self._due(worker)
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
        await asyncio.sleep(self._pace.wait(asyncio.get_running_loop().time()))

    async def _due(self, worker: ThreadPoolExecutor) -> None:
        """Wait for a reason. The timer is one, also when others never cease; after a failure, another try
        is. Where the kubelet's rate limit was reached no reason is good enough before the pause is over.
        """
        loop = asyncio.get_running_loop()
        if pause := self._pace.held_off(loop.time()):
            await asyncio.sleep(pause)
            self._wanted[Trigger.RETRY] = None
            return
        due, cause = self._pace.due(loop.time(), self._full_at)
        while due > loop.time():
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                break
            if self._reconsider:
                await self._read_anew(worker)
            if self._wanted:
                return
            self._wake.clear()
        self._wanted[cause] = None

    def _look_again_after(self, causes: tuple[Trigger, ...]) -> None:
        if not {Trigger.REGISTRATION, Trigger.SOCKET, Trigger.PLUGIN}.isdisjoint(causes):
            loop = asyncio.get_running_loop()
            for delay in self._timing.settling:
                loop.call_later(delay, self.trigger, Trigger.SETTLING)

    async def _refresh(self, causes: tuple[Trigger, ...], worker: ThreadPoolExecutor) -> None:
        full = self._needs_full or not _OF_LIST.issuperset(causes)
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
            failure = Failure(error.method, error.code, error.message, self._clock.now())
            self._fail(failure, limited=error.rate_limited)
        except Exception as error:  # noqa: BLE001 -- an answer nobody foresaw must not end the process
            self._fail(Failure("List", "INTERNAL", f"{type(error).__name__}: {error}", self._clock.now()))
        if full:
            self._full_at = asyncio.get_running_loop().time()

    async def _ask(self, worker: ThreadPoolExecutor, *, allocatable: bool) -> bool:
        """Ask and publish. False if List alone was not enough to tell."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        self._pace.listed(asked)
        raw = await self._source.fetch_raw(allocatable=allocatable)
        look = Poll(asked, loop.time())
        self._notice_age(raw, look)
        read = partial(
            self._understanding.read,
            raw,
            self._clock.wall(),
            look=look,
            view=self._witness.view,
            advertised=self._plugins.advertised,
            returned=self._returned_at,
        )
        news = await loop.run_in_executor(worker, read)
        if news is None:
            return False
        if asked >= self._returned_at:
            self._returned_at = -NEVER
        # Together with the state that it dates: an age must not be measured by two clocks.
        self._clock.sync()
        self._look = look
        self._publish(raw, news, self._clock.now() - (loop.time() - asked))
        return True

    def _notice_age(self, raw: Raw, look: Poll) -> None:
        """A kubelet may be another one without its connection having failed, or its directory having told."""
        if raw.socket_age is None or not 0 <= raw.socket_age < DISTRUST:
            return
        born = look.answered - raw.socket_age
        if born > self._born_at + _SAME_AGE:
            self._born_at = born
            if self._board.state.taken_at is not None:
                self._returned_at = max(self._returned_at, born)

    async def _read_anew(self, worker: ThreadPoolExecutor) -> None:
        """Publish the last answer in the light of what is known by now. NoPods is asked."""
        self._reconsider = False
        loop = asyncio.get_running_loop()
        view, advertised = self._witness.view, self._plugins.advertised
        read = partial(self._understanding.reconsider, self._clock.wall(), view, advertised)
        try:
            news = await loop.run_in_executor(worker, read)
            if news is not None:
                state = self._board.state
                self._tell(replace(state, **_changes(news, state, self._clock.now())), news)
                self._observer.reread()
        except Exception as error:  # noqa: BLE001 -- the mapping stays as it is; the next refresh reads it anew
            _log.error("what is newly known cannot be told", error=f"{type(error).__name__}: {error}")

    def _publish(self, raw: Raw, news: Update, asked_at: float) -> None:
        self._pace.succeeded()
        self._episode.recovered()
        self._stale.recovered()
        state = self._board.state
        for note in raw.notes:
            if note not in state.notes:
                _log.warn(note)
        self._notes = (*raw.notes, *self._of_allocatable(raw, news))
        changes = _changes(news, state, asked_at)
        state = replace(state, taken_at=asked_at, failure=None, api_version=raw.api_version, **changes)
        self._tell(state, news)

    def _of_allocatable(self, raw: Raw, news: Update) -> tuple[str, ...]:
        """Count and tell that GetAllocatableResources fails, or that it is over."""
        error, now = news.allocatable_error, asyncio.get_running_loop().time()
        if error is None:
            self._pace.allocatable_succeeded(now)
            self._allocatable.recovered()
            return ()
        if raw.asked_allocatable:
            self._pace.allocatable_failed(now, limited=error.rate_limited)
            self._observer.failed(error.method, error.code)
            self._allocatable.failed(f"{error.code}: {error.message}", level=self._level)
        told = "those of its last answer" if news.snapshot.complete else "unknown"
        return (f"{error.method} fails ({error.code}): free devices and health are {told}",)

    @property
    def _level(self) -> Literal["debug", "warn"]:
        """How loudly a failure is told: where monitors share a kubelet a refusal or two are usual."""
        return "debug" if 0 < self._pace.refusals <= _USUAL_REFUSALS else "warn"

    def _tell(self, state: State, news: Update) -> None:
        state = replace(state, notes=(*self._notes, *self._remarks(state)))
        self._board.publish(state)
        self._witness.looked(state, self._look)
        if news.step is not None:
            self._observer.stepped(state, news.step)

    def _fail(self, failure: Failure, *, limited: bool = False) -> None:
        now = asyncio.get_running_loop().time()
        self._pace.failed(now, limited=limited, unsettled=failure.code == UNSETTLED)
        self._observer.failed(failure.method, failure.code)
        self._episode.failed(f"{failure.method}: {failure.code}: {failure.message}", level=self._level)
        state = self._board.state
        if state.freshness(self._clock.now(), self._timing.stale_after) is Freshness.STALE:
            self._stale.failed(f"older than {self._timing.stale_after:g} s", level="error")
        if state.failure is not None:
            failure = replace(failure, since=state.failure.since)
        if failure != state.failure:
            self._board.publish(replace(state, failure=failure))


def _changes(news: Update, state: State, at: float) -> dict[str, Any]:
    """What in `state` is another by the news of unix time `at`."""
    if (
        news.snapshot is state.snapshot
        and news.pods is state.pods
        and news.since is state.since
        and news.anomalies is state.anomalies
        and news.advertised is state.advertised
    ):
        return {}
    return {
        "generation": state.generation + 1,
        "snapshot": news.snapshot,
        "changed_at": at,
        "since": news.since,
        "pods": news.pods,
        "anomalies": news.anomalies,
        "advertised": news.advertised,
    }


class Observers:
    """Tells each of `observers`, in their order. Implements the refresh loop's Observer."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def refreshed(self, triggers: Iterable[Trigger], seconds: float) -> None:
        """A refresh ended."""
        causes = tuple(triggers)
        for observer in self._observers:
            observer.refreshed(causes, seconds)

    def failed(self, method: str, code: str) -> None:
        """A refresh failed."""
        for observer in self._observers:
            observer.failed(method, code)

    def reread(self) -> None:
        """The last answer was read anew."""
        for observer in self._observers:
            observer.reread()

    def stepped(self, state: State, step: HoldingChanges) -> None:
        """A refresh brought changes."""
        for observer in self._observers:
            observer.stepped(state, step)
