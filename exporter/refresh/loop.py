"""The refresh loop: calls the kubelet, processes its answers one at a time, and publishes the state.

Triggers are merged: the first one starts a refresh at once, those that arrive meanwhile share the next one. A
failed refresh keeps the last good snapshot and is retried with growing, jittered pauses (triggers.CallPacer).
"""

import asyncio
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal

import grpc
from msgspec.structs import replace

from exporter.mapping.dra import ClaimName
from exporter.mapping.holdings import OpenHoldings
from exporter.mapping.identity import NEVER, Poll
from exporter.mapping.model import Snapshot
from exporter.mapping.restart_guard import YOUNG_SOCKET
from exporter.mapping.state import Failure, Freshness, State, StateStore
from exporter.refresh.pipeline import SnapshotPipeline, Update
from exporter.refresh.protocols import (
    DraSource,
    KubeletSource,
    NoDra,
    NoPlugins,
    NoPods,
    NoteSource,
    Observer,
    Phase,
    PhaseObserver,
    PluginSource,
    PodSource,
    Preparer,
    Trigger,
)
from exporter.refresh.triggers import CallPacer, RefreshTiming
from kubelet.podresources import KubeletError, Raw
from runtime.clock import Clock
from runtime.log import Episode, Log

_CALM: Final = 60.0
"""Seconds for which a lasting failure is not logged again though its reason changes: a kubelet that crashes
repeatedly gives another reason each time.
"""
_USUAL_REFUSALS: Final = 3
"""Refusals in a row at the kubelet's rate limit, about 0.5 s, that are logged at debug level only."""
_SAME_AGE: Final = 0.5
"""Seconds by which two measurements of one socket's creation may differ."""

_CLAIMS_WITHIN: Final = 1.0
"""Seconds for which an answer waits until its new claims are read."""

_LIST_ONLY: Final = frozenset({Trigger.ALLOCATION, Trigger.PODS, Trigger.CGROUP})
"""Triggers that do not change what is allocatable: List alone is called."""

_log = Log("refresh")


class _PhaseTimer:
    """Seconds of one refresh by phase: what is between the ends of two phases belongs to the second."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(Phase, 0.0)
        self._ended_at = asyncio.get_running_loop().time()

    @contextmanager
    def phase(self, phase: Phase) -> Generator[None]:
        """The phase ends with this context, however it ends."""
        try:
            yield
        finally:
            now = asyncio.get_running_loop().time()
            self.seconds[phase] += now - self._ended_at
            self._ended_at = now


class Refresher:
    """Runs the loop. Call `trigger` from anywhere in the event loop's thread; `run` is an actor."""

    def __init__(
        self,
        kubelet: KubeletSource,
        states: StateStore,
        observers: Sequence[Observer],
        pipeline: SnapshotPipeline,
        *,
        timing: RefreshTiming,
        clock: Clock,
        pods: PodSource | None = None,
        plugins: PluginSource | None = None,
        dra: DraSource | None = None,
        notes: Sequence[NoteSource] = (),
        preparers: Sequence[Preparer] = (),
        phases: PhaseObserver | None = None,
    ) -> None:
        self._kubelet = kubelet
        self._states = states
        self._observers = observers
        self._timing = timing
        self._clock = clock
        self._pods = pods or NoPods()
        self._plugins = plugins or NoPlugins()
        self._dra = dra or NoDra()
        self._reads_claims = dra is not None
        self._note_sources = notes
        self._notes: tuple[str, ...] = ()
        self._preparers = preparers
        self._phases = phases
        self._pipeline = pipeline
        self._pending: dict[Trigger, None] = {}
        self._reconsider = False
        self._wake = asyncio.Event()
        self._reset = False
        self._pacer = CallPacer(timing)
        self._poll = Poll(-NEVER, -NEVER)
        self._restarted_at = -NEVER
        self._socket_made_at = -NEVER
        self._claims = frozenset[ClaimName]()
        self._full_at = 0.0
        self._needs_full = True
        self._failing = Episode(_log, "List failed", calm=_CALM)
        self._allocatable_failing = Episode(
            _log, "the kubelet does not answer GetAllocatableResources", calm=_CALM
        )
        self._missing = Episode(_log, "holdings are not confirmed since the kubelet restarted", calm=_CALM)
        self._stale = Episode(_log, "the mapping is stale and withdrawn from /metrics")
        self._unprepared = Episode(_log, "answers cannot be prepared, each request makes its own", calm=_CALM)

    def trigger(self, cause: Trigger) -> None:
        """Request a refresh. Never blocks; pending triggers are merged."""
        if cause is Trigger.SOCKET:
            self._reset = True
            # Before the first answer no pod can be missing.
            if self._states.state.taken_at is not None:
                self._note_restart()
        self._pending[cause] = None
        self._wake.set()

    def reconsider(self) -> None:
        """Read the last answer again with the present pods, plugin reports, and DRA facts. Never blocks."""
        self._reconsider = True
        self._wake.set()

    def restore(self, recorded: OpenHoldings) -> None:
        """Take over the starts of holdings from history. Never blocks."""
        self._pipeline.restore(recorded)
        self.reconsider()

    def _note_restart(self) -> None:
        self._restarted_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Refresh until cancelled."""
        loop = asyncio.get_running_loop()
        worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._full_at = loop.time()
        try:
            self.trigger(Trigger.START)
            while True:
                await self._wait(worker)
                timer, began = _PhaseTimer(), loop.time()
                causes = tuple(self._pending)
                self._pending.clear()
                self._wake.clear()
                with timer.phase(Phase.PUBLISHING):
                    await self._refresh(causes, worker, timer)
                    for observer in self._observers:
                        observer.refreshed(causes, loop.time() - began)
                if self._phases is not None:
                    self._phases.timed(timer.seconds)
                if not {Trigger.REGISTRATION, Trigger.SOCKET, Trigger.PLUGIN}.isdisjoint(causes):
                    for delay in self._timing.settling:
                        loop.call_later(delay, self.trigger, Trigger.SETTLING)
                await self._space()
        finally:
            # Not waited for: an answer that is still being processed must not delay the end of the process.
            worker.shutdown(wait=False, cancel_futures=True)

    async def _space(self) -> None:
        """Wait until List may be called again."""
        await asyncio.sleep(self._pacer.wait(asyncio.get_running_loop().time()))

    async def _wait(self, worker: ThreadPoolExecutor) -> None:
        """Wait for a trigger, the timer, or the next retry. At the kubelet's rate limit only the end of the
        pause counts.
        """
        loop = asyncio.get_running_loop()
        if pause := self._pacer.held_off(loop.time()):
            await asyncio.sleep(pause)
            self._pending[Trigger.RETRY] = None
            return
        due, cause = self._pacer.due(loop.time(), self._full_at)
        while due > loop.time():
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                break
            if self._reconsider:
                await self._read_again(worker)
            if self._pending:
                return
            self._wake.clear()
        self._pending[cause] = None

    async def _refresh(
        self, causes: tuple[Trigger, ...], worker: ThreadPoolExecutor, timer: _PhaseTimer
    ) -> None:
        full = self._needs_full or not _LIST_ONLY.issuperset(causes)
        self._needs_full = True
        try:
            if self._reset:
                self._reset = False
                await self._kubelet.reset()
            if not await self._call(worker, timer, allocatable=full):
                await self._space()
                full = await self._call(worker, timer, allocatable=True)
            self._needs_full = False
        except KubeletError as error:
            if error.code == grpc.StatusCode.UNAVAILABLE.name:
                self._note_restart()
            failure = Failure(error.method, error.code, error.message, self._clock.now())
            self._fail(failure, limited=error.rate_limited)
        except Exception as error:  # noqa: BLE001 -- an unforeseen answer must not end the process
            self._fail(Failure("List", "INTERNAL", f"{type(error).__name__}: {error}", self._clock.now()))
        if full:
            self._full_at = asyncio.get_running_loop().time()

    async def _call(self, worker: ThreadPoolExecutor, timer: _PhaseTimer, *, allocatable: bool) -> bool:
        """Call the kubelet, process the answer and publish it. False if GetAllocatableResources is needed."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        self._pacer.listed(asked)
        with timer.phase(Phase.KUBELET):
            raw = await self._kubelet.fetch_raw(allocatable=allocatable)
        poll = Poll(asked, loop.time())
        self._check_socket_age(raw, poll)
        with timer.phase(Phase.MAPPING):
            update = await self._processed(worker, raw, poll)
        if update is None:
            return False
        if asked >= self._restarted_at and not update.snapshot.unconfirmed:
            self._restarted_at = -NEVER
        self._poll = poll
        drift = self._clock.drift()
        state = self._succeeded(raw, update, self._clock.now() + drift - (loop.time() - asked))
        with timer.phase(Phase.RENDERING):
            state = await loop.run_in_executor(worker, self._prepared, state)
        # Together with the state that it dates: an age must not be measured by two clocks.
        self._clock.advance(drift)
        self._publish(state, update)
        return True

    async def _processed(self, worker: ThreadPoolExecutor, raw: Raw, poll: Poll) -> Update | None:
        """Process an answer in the worker. New claims are read first: an administrator must not be shown as a
        holder.
        """
        loop = asyncio.get_running_loop()
        if self._reads_claims:
            unread = await loop.run_in_executor(worker, self._pipeline.unread_claims, raw, self._dra.view)
            if unread:
                self._dra.want(unread | self._claims)
                await self._dra.known(unread, _CLAIMS_WITHIN)
        process = partial(
            self._pipeline.process,
            raw,
            self._clock.wall(),
            poll=poll,
            view=self._pods.view,
            advertised=self._plugins.advertised,
            dra=self._dra.view,
            restarted_at=self._restarted_at,
        )
        return await loop.run_in_executor(worker, process)

    def _check_socket_age(self, raw: Raw, poll: Poll) -> None:
        """Notice a restart that neither the connection nor the directory showed."""
        if raw.socket_age is None or not 0 <= raw.socket_age < YOUNG_SOCKET:
            return
        made_at = poll.answered - raw.socket_age
        if made_at > self._socket_made_at + _SAME_AGE:
            self._socket_made_at = made_at
            if self._states.state.taken_at is not None:
                self._restarted_at = max(self._restarted_at, made_at)

    async def _read_again(self, worker: ThreadPoolExecutor) -> None:
        """Publish the last answer with the present pods and plugin reports. The kubelet is not called."""
        self._reconsider = False
        loop = asyncio.get_running_loop()
        facts = self._pods.view, self._plugins.advertised, self._dra.view
        read = partial(self._pipeline.reconsider, self._clock.wall(), *facts)
        try:
            update = await loop.run_in_executor(worker, read)
            if update is not None:
                state = _with_update(self._states.state, update, self._clock.now())
                self._publish(await loop.run_in_executor(worker, self._prepared, state), update)
                for observer in self._observers:
                    observer.reread()
        except Exception as error:  # noqa: BLE001 -- the mapping stays; the next refresh reads everything again
            _log.error("the last answer cannot be read again", error=f"{type(error).__name__}: {error}")

    def _succeeded(self, raw: Raw, update: Update, asked_at: float) -> State:
        """The state after a good answer."""
        self._pacer.succeeded(unconfirmed=bool(update.snapshot.unconfirmed))
        self._failing.recovered()
        self._stale.recovered()
        state = self._states.state
        for note in (*raw.notes, *update.notes):
            if note not in state.notes:
                _log.warn(note)
        problems = self._check_allocatable(raw, update)
        problems += (*self._check_pods(update.snapshot), *self._check_slices(update.snapshot))
        self._notes = (*raw.notes, *update.notes, *problems)
        state = _with_update(state, update, asked_at)
        return replace(state, taken_at=asked_at, failure=None, api_version=raw.api_version)

    def _prepared(self, state: State) -> State:
        """`state` with its notes, when everything that readers need of it is made. Runs in the worker."""
        further = [note for source in self._note_sources for note in source.notes(state)]
        state = replace(state, notes=(*self._notes, *further))
        try:
            for preparer in self._preparers:
                preparer.prepare(state)
        except Exception as error:  # noqa: BLE001 -- the mapping is right without it
            self._unprepared.failed(f"{type(error).__name__}: {error}", level="error")
        else:
            self._unprepared.recovered()
        return state

    def _check_allocatable(self, raw: Raw, update: Update) -> tuple[str, ...]:
        """Count and log a failure of GetAllocatableResources, or its end. Returns notes."""
        error, now = update.allocatable_error, asyncio.get_running_loop().time()
        if error is None:
            self._pacer.allocatable_succeeded(now)
            self._allocatable_failing.recovered()
            return ()
        if raw.asked_allocatable:
            self._pacer.allocatable_failed(now, limited=error.rate_limited)
            for observer in self._observers:
                observer.failed(error.method, error.code)
            self._allocatable_failing.failed(f"{error.code}: {error.message}", level=self._level)
        shown = "those of its last answer" if update.snapshot.complete else "unknown"
        return (f"{error.method} fails ({error.code}): free devices and health are {shown}",)

    def _check_pods(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Log whether holdings are unconfirmed since the kubelet restarted. Returns a note."""
        if not snapshot.unconfirmed:
            self._missing.recovered()
            return ()
        count = len(snapshot.unconfirmed)
        missing = f"{count} {'pod' if count == 1 else 'pods'} with devices missing from List"
        self._missing.failed(missing)
        return (f"{missing} since the kubelet restarted: what they hold is not confirmed",)

    def _check_slices(self, snapshot: Snapshot) -> tuple[str, ...]:
        """A note on a node with claimed devices whose ResourceSlices no source reads."""
        if not snapshot.held_only or any(one.name == "slices" for one in self._dra.view.sources):
            return ()
        unknown = "which devices of DRA drivers are free is unknown, and which claims are for administration"
        why = "no ResourceSlices are read (apply deploy/components/dra, or set --dra.source slices)"
        return (f"{unknown}: {why}",)

    @property
    def _level(self) -> Literal["debug", "warn"]:
        """The level of a failure: where monitors share a kubelet, a refusal or two are usual."""
        return "debug" if 0 < self._pacer.refusals <= _USUAL_REFUSALS else "warn"

    def _publish(self, state: State, update: Update) -> None:
        self._states.publish(state)
        self._pods.polled(state, self._poll)
        if self._reads_claims:
            self._claims = update.claims | self._pods.view.claims()
            self._dra.want(self._claims)
        if update.changes is not None:
            for observer in self._observers:
                observer.changed(state, update.changes)

    def _fail(self, failure: Failure, *, limited: bool = False) -> None:
        now = asyncio.get_running_loop().time()
        self._pacer.failed(now, limited=limited, unsettled=failure.unsettled)
        for observer in self._observers:
            observer.failed(failure.method, failure.code)
        self._failing.failed(f"{failure.method}: {failure.code}: {failure.message}", level=self._level)
        state = self._states.state
        if state.freshness(self._clock.now(), self._timing.stale_after) is Freshness.STALE:
            self._stale.failed(f"older than {self._timing.stale_after:g} s", level="error")
        if state.failure is not None:
            failure = replace(failure, since=state.failure.since)
        if failure != state.failure:
            self._states.publish(replace(state, failure=failure))


def _with_update(state: State, update: Update, at: float) -> State:
    """`state` with the content of `update`, and another generation if any of it is new."""
    if (
        update.snapshot is state.snapshot
        and update.pods is state.pods
        and update.since is state.since
        and update.anomalies is state.anomalies
        and update.advertised is state.advertised
        and update.sources == state.sources
    ):
        return state
    return replace(
        state,
        generation=state.generation + 1,
        snapshot=update.snapshot,
        changed_at=at,
        since=update.since,
        pods=update.pods,
        anomalies=update.anomalies,
        advertised=update.advertised,
        statuses=update.statuses,
        sources=update.sources,
    )
