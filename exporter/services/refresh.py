"""The refresh loop: one at a time, as soon as there is a reason, never more often than is fair.

Reasons are coalesced: the first acts at once, those that come while it is under way share the next
one. The kubelet's limit of 100 calls a second is shared by all its clients, so List is called at
most every SPACING seconds. A refresh that failed keeps the last good snapshot and is tried again
soon, with growing, jittered pauses.
"""

import asyncio
import random
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Final, Protocol

import grpc

from daemon.log import Episode, Log
from exporter.core.anomalies import Anomaly, find
from exporter.core.diff import pods_gone
from exporter.core.holdings import Ledger, Step
from exporter.core.model import DeviceKey, Snapshot
from exporter.core.snapshot import build
from exporter.core.state import Failure, State
from exporter.kubelet.client import KubeletError, Raw, decode_allocatable, decode_list
from exporter.pb.podresources.v1 import api_pb2
from exporter.services.board import Board
from exporter.services.clock import SteadyClock

SPACING: Final = 0.05
"""Least seconds between two calls of List: at most 20 a second."""

SETTLING: Final = (0.2, 1.0)
"""Seconds after a registration at which allocatable is asked again: the kubelet makes room for a new
plugin's devices only when their first list has arrived, and tells nobody.
"""

DOUBT: Final = 10.0
"""Seconds after a kubelet's return within which pods that are missing from List are not believed gone."""

UNSETTLED: Final = "UNSETTLED"
"""Stands where a gRPC code would, for a List in which a kubelet that just came up leaves pods out."""

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
    """The loop's times, in seconds: `interval` between full refreshes at the latest."""

    interval: float
    spacing: float = SPACING
    settling: tuple[float, ...] = SETTLING


@dataclass(frozen=True, slots=True)
class _News:
    """What a good answer says; `step` is None if it says the same as the one before."""

    snapshot: Snapshot
    step: Step | None
    anomalies: tuple[Anomaly, ...]


class _Understanding:
    """Makes news of answers. Runs beside the event loop, one answer at a time."""

    def __init__(self, cpu_numa: Mapping[int, int]) -> None:
        self._cpu_numa = cpu_numa
        self._ledger = Ledger()
        self._raw: Raw | None = None
        self._news: _News | None = None
        self._allocatable: api_pb2.AllocatableResourcesResponse | None = None

    def read(self, raw: Raw, now: float, *, doubtful: bool) -> _News | None:
        """The news in `raw`, received at unix time `now`.

        Raises KubeletError for what does not decode, and, if the kubelet is `doubtful`, for a List that
        leaves out pods that held something: for about a second after its return, until it has heard
        from the API server, a kubelet lists no pod at all, and answers OK.

        None if only List was asked and a device in it is not known to be allocatable, nor known not to
        be: GetAllocatableResources must be asked before it is called unhealthy.
        """
        if self._news is not None and raw == self._raw:
            return replace(self._news, step=None)
        listed = decode_list(raw.listed)
        allocatable = self._allocatable
        if raw.asked_allocatable:
            allocatable = None if raw.allocatable is None else decode_allocatable(raw.allocatable)
        snapshot = build(listed, allocatable, cpu_numa=self._cpu_numa)
        if not raw.asked_allocatable and not _unhealthy(snapshot) <= self._known_unhealthy():
            return None
        if doubtful and self._news is not None:
            missing = pods_gone(self._news.snapshot, snapshot)
            if missing:
                raise KubeletError("List", UNSETTLED, _unsettled(missing))
        self._raw, self._allocatable = raw, allocatable
        if self._news is not None and snapshot == self._news.snapshot:
            return replace(self._news, step=None)
        self._news = _News(snapshot, self._ledger.advance(snapshot, now), find(snapshot))
        return self._news

    def _known_unhealthy(self) -> frozenset[DeviceKey]:
        return frozenset() if self._news is None else _unhealthy(self._news.snapshot)


def _unsettled(missing: Collection[tuple[str, str]]) -> str:
    return (
        f"the kubelet has just come back and does not list all pods yet: {len(missing)} that held devices "
        "are missing"
    )


def _unhealthy(snapshot: Snapshot) -> frozenset[DeviceKey]:
    return frozenset(device.key for device in snapshot.devices if not device.allocatable)


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
        self._understanding = _Understanding(cpu_numa)
        self._wanted: dict[Trigger, None] = {}
        self._wake = asyncio.Event()
        self._reset = False
        self._failures = 0
        self._doubtful_until = 0.0
        self._full_at = 0.0
        self._needs_full = True
        self._episode = Episode(_log, "the kubelet does not tell who holds what")

    def trigger(self, cause: Trigger) -> None:
        """Ask for a refresh. Never blocks; reasons that wait are merged."""
        if cause is Trigger.SOCKET:
            self._reset = True
            self._doubt()
        self._wanted[cause] = None
        self._wake.set()

    def _doubt(self) -> None:
        self._doubtful_until = asyncio.get_running_loop().time() + DOUBT

    async def run(self) -> None:
        """Refresh until cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot") as worker:
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
                await asyncio.sleep(max(0.0, called + self._timing.spacing - loop.time()))

    async def _due(self) -> None:
        """Wait for a reason. The timer is one; after a failure, another try is."""
        if self._failures:
            pause, cause = self._retry_pause(), Trigger.RETRY
        else:
            now = asyncio.get_running_loop().time()
            pause, cause = max(0.0, self._full_at + self._timing.interval - now), Trigger.TIMER
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
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
        if self._reset:
            self._reset = False
            await self._source.reset()
        full = self._needs_full or causes != (Trigger.ALLOCATION,)
        self._needs_full = True
        try:
            if not await self._ask(worker, allocatable=full):
                full = await self._ask(worker, allocatable=True)
            self._needs_full = False
        except KubeletError as error:
            if error.code == grpc.StatusCode.UNAVAILABLE.name:
                self._doubt()
            self._fail(Failure(error.method, error.code, error.message, self._clock.now()))
        except Exception as error:  # noqa: BLE001 -- an answer nobody foresaw must not end the process
            _log.error("an answer could not be understood", error=f"{type(error).__name__}: {error}")
            self._fail(Failure("List", "INTERNAL", f"{type(error).__name__}: {error}", self._clock.now()))
        if full:
            self._full_at = asyncio.get_running_loop().time()

    async def _ask(self, worker: ThreadPoolExecutor, *, allocatable: bool) -> bool:
        """Ask and publish. False if List alone was not enough to tell."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        raw = await self._source.fetch_raw(allocatable=allocatable)
        self._clock.set_right()
        asked_at = self._clock.now() - (loop.time() - asked)
        doubtful = loop.time() < self._doubtful_until
        read = partial(self._understanding.read, raw, self._clock.now(), doubtful=doubtful)
        news = await loop.run_in_executor(worker, read)
        if news is None:
            return False
        self._publish(raw, news, asked_at)
        return True

    def _publish(self, raw: Raw, news: _News, asked_at: float) -> None:
        self._failures = 0
        self._episode.recovered()
        state = self._board.state
        for note in raw.notes:
            if note not in state.notes:
                _log.warn(note)
        state = replace(state, taken_at=asked_at, failure=None, api_version=raw.api_version, notes=raw.notes)
        if news.step is not None:
            state = replace(
                state,
                generation=state.generation + 1,
                snapshot=news.snapshot,
                changed_at=asked_at,
                since=news.step.since,
                anomalies=news.anomalies,
            )
            self._observer.stepped(state, news.step)
        self._board.publish(state)

    def _fail(self, failure: Failure) -> None:
        self._failures += 1
        self._observer.failed(failure.method, failure.code)
        self._episode.failed(f"{failure.method}: {failure.code}: {failure.message}")
        state = self._board.state
        if state.failure is not None:
            failure = replace(failure, since=state.failure.since)
        if failure != state.failure:
            self._board.publish(replace(state, failure=failure))
