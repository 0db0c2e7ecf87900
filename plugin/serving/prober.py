"""Runs the probes of a resource and passes on the fault events of its devices."""

import asyncio
import heapq
import ssl
import threading
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager, suppress
from functools import cache
from glob import escape
from typing import Final

import aiohttp

from plugin.config.plan import ProbePlan
from plugin.devices.device import Device
from plugin.devices.health import HealthTracker, concerns
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Fault, FaultSource, SourceConfig
from plugin.serving.probes import ProbeRunner, Question, questions
from plugin.serving.scan import bounded
from runtime.clock import Clock, wait_within
from runtime.http.client import client_context
from runtime.log import Episode, Log

MAX_REQUESTS: Final = 16
"""HTTP probes of one resource that run at the same time."""

_ProbeKey = tuple[str, int]
"""A device's id and a probe's index."""

_log = Log("faults")


class Prober:
    """Keeps a resource's `HealthTracker` up to date. Run `run()`."""

    def __init__(
        self,
        probes: tuple[ProbePlan, ...],
        *,
        host: HostRoot,
        health: HealthTracker,
        clock: Clock,
        spread: Callable[[], float],
        changed: Callable[[Collection[str]], None],
    ) -> None:
        """`spread` returns random numbers from 0 to 1; `changed` gets the ids whose health changed."""
        self._probes = probes
        self._host = host
        self._health = health
        self._clock = clock
        self._spread = spread
        self._changed = changed
        self._runner = ProbeRunner()
        self._requests = asyncio.Semaphore(MAX_REQUESTS)
        self._devices: dict[str, tuple[Device, dict[int, Question]]] = {}
        self._by_path: dict[str, set[_ProbeKey]] = {}
        self._queue: list[tuple[float, str, int]] = []
        self._next: dict[_ProbeKey, float] = {}
        """The next run of each probe with an interval. Other times in the queue are obsolete."""
        self._running: dict[_ProbeKey, bool] = {}
        """The probes that run, and whether another run was requested meanwhile."""
        self._requested: dict[_ProbeKey, None] = {}
        self._unreported: set[str] = set()
        self._wake = asyncio.Event()

    def scanned(self, devices: Collection[str]) -> None:
        """Remove all but these devices, and run the probes that belong to each scan."""
        for device_id in [i for i in self._devices if i not in devices]:
            self.remove(device_id)
        self._request(
            (i, q.probe) for i, (_, each) in self._devices.items() for q in each.values() if q.with_scans
        )

    def add(self, device: Device) -> None:
        """Add a device, or replace it where it changed, and run its probes."""
        known = self._devices.get(device.id)
        if not self._probes or (known is not None and known[0] is device):
            return
        self.remove(device.id)
        each = {question.probe: question for question in questions(self._probes, device, self._host)}
        self._devices[device.id] = device, each
        for question in each.values():
            if question.interval:
                self._schedule(question, self._clock.monotonic())
            for path in question.paths if question.with_scans else ():
                self._by_path.setdefault(path, set()).add((device.id, question.probe))
        self._request((device.id, question.probe) for question in each.values() if question.with_scans)

    def remove(self, device_id: str) -> None:
        """Remove a device, if it is there."""
        known = self._devices.pop(device_id, None)
        for question in known[1].values() if known is not None else ():
            key = device_id, question.probe
            self._next.pop(key, None)
            for path in question.paths:
                keys = self._by_path.get(path, set())
                keys.discard(key)
                if not keys:
                    self._by_path.pop(path, None)

    @property
    def watched(self) -> tuple[tuple[str, str], ...]:
        """Directories, with patterns of entries, in which a write calls for a probe."""
        pairs: dict[tuple[str, str], None] = {}
        for path in sorted(self._by_path):
            parent, _, name = path.rstrip("/").rpartition("/")
            pairs[parent or "/", escape(name)] = None
        return bounded(pairs)

    def touched(self, directory: str, name: str) -> None:
        """Run the probes of that directory entry."""
        path = f"{directory.rstrip('/')}/{name}"
        self._request(self._by_path.get(path) or self._by_path.get(f"{path}/") or ())

    def fault(self, fault: Fault) -> None:
        """Apply a fault event to the devices that it concerns."""
        now = self._clock.monotonic()
        devices = [device for device, _ in self._devices.values() if concerns(fault, device)]
        self._unreported.update(device.id for device in devices if self._health.fault(device, fault, now))
        self._wake.set()

    async def run(self) -> None:
        """Run probes when they are due, until cancelled."""
        self._running.clear()
        for _, each in self._devices.values():
            for question in each.values():
                self._run_again(question, self._clock.monotonic())
        async with asyncio.TaskGroup() as group:
            while True:
                now = self._clock.monotonic()
                changed, self._unreported = self._unreported.union(self._health.advance(now)), set()
                if changed:
                    self._changed(changed)
                due = [*self._due(now), *self._take_requested()]
                if due:
                    group.create_task(self._probe(due))
                await self._pause()

    def _request(self, keys: Iterable[_ProbeKey]) -> None:
        self._requested.update(dict.fromkeys(keys))
        self._wake.set()

    def _due(self, now: float) -> Iterable[Question]:
        """Probes whose interval is over, and that do not run."""
        while self._queue and self._queue[0][0] <= now:
            time, device_id, probe = heapq.heappop(self._queue)
            key = device_id, probe
            question = self._question(key)
            if question is not None and self._next.get(key) == time:
                del self._next[key]
                if key not in self._running:
                    self._running[key] = False
                    yield question

    def _take_requested(self) -> Iterable[Question]:
        """Requested probes. One that runs already runs once more afterwards."""
        requested, self._requested = self._requested, {}
        for key in requested:
            question = self._question(key)
            if key in self._running:
                self._running[key] = True
            elif question is not None:
                self._running[key] = False
                yield question

    def _question(self, key: _ProbeKey) -> Question | None:
        known = self._devices.get(key[0])
        return None if known is None else known[1].get(key[1])

    async def _pause(self) -> None:
        times = [self._queue[0][0]] if self._queue else []
        if self._health.due is not None:
            times.append(self._health.due)
        limit = max(0.0, min(times) - self._clock.monotonic()) if times else None
        await wait_within(self._wake, limit)
        self._wake.clear()

    async def _probe(self, due: list[Question]) -> None:
        async with asyncio.TaskGroup() as group:
            for question in due:
                if question.ask is None:
                    group.create_task(self._get(question))
            await self._runner.run([q for q in due if q.ask is not None], self._answered)

    async def _get(self, question: Question) -> None:
        async with self._requests:
            self._answered(question, await get(question))

    def _answered(self, question: Question, reason: str) -> None:
        key = question.device, question.probe
        repeat = self._running.pop(key, False)
        now = self._clock.monotonic()
        current = self._question(key)
        if current is None:
            return
        if current is not question:
            # The answer is about the device before it was replaced.
            self._run_again(current, now)
            return
        if repeat:
            self._run_again(question, now)
        elif question.interval:
            # Intervals vary, so that devices found together are not probed together for ever.
            least = 0.5 if self._health.reason(question.device) is None else 0.9
            self._schedule(question, now + question.interval * (least + (1.1 - least) * self._spread()))
        if self._health.answer(question.device, question.probe, reason, now):
            self._unreported.add(question.device)
        self._wake.set()

    def _run_again(self, question: Question, now: float) -> None:
        if question.interval:
            self._schedule(question, now)
        else:
            self._request(((question.device, question.probe),))

    def _schedule(self, question: Question, time: float) -> None:
        self._next[question.device, question.probe] = time
        heapq.heappush(self._queue, (time, question.device, question.probe))
        self._wake.set()


@cache
def tls() -> ssl.SSLContext:
    """TLS with the system's authorities, or those of SSL_CERT_FILE."""
    return client_context(None)


async def get(question: Question) -> str:
    """Send the GET request of an HTTP probe. Returns why the probe fails, empty where it succeeds.

    Each request uses a new connection, follows no redirect and reads no body.
    """
    try:
        async with (
            asyncio.timeout(question.timeout),
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), cookie_jar=aiohttp.DummyCookieJar()
            ) as session,
            session.get(
                question.url,
                allow_redirects=False,
                ssl=tls() if question.url.startswith("https:") else True,
            ) as answer,
        ):
            status = answer.status
    except TimeoutError:
        return f"{question.url}: no answer within {question.timeout:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return f"{question.url}: {str(error) or type(error).__name__}"
    expected = range(200, 300) if question.status is None else question.status
    return "" if status in expected else f"{question.url}: status {status}"


_Sources = tuple[SourceConfig, ...]
_OnFault = Callable[[Fault], None]


class FaultEvents:
    """Receives fault events in threads: one for equal sources, shared by their resources."""

    def __init__(self, make: Callable[[_Sources], FaultSource | None]) -> None:
        """`make` returns what reports faults of the devices of these sources, if anything does."""
        self._make = make
        self._listeners: list[tuple[_Sources, _FaultListener]] = []

    @contextmanager
    def following(self, sources: _Sources, on_fault: _OnFault) -> Generator[None]:
        """Call `on_fault` in the event loop for each fault of the devices of `sources`."""
        listener = self._listener(sources)
        if listener is None:
            yield
            return
        listener.followers.append(on_fault)
        try:
            yield
        finally:
            listener.followers.remove(on_fault)
            if not listener.followers:
                listener.stop.set()
                self._listeners = [item for item in self._listeners if item[1] is not listener]

    def _listener(self, sources: _Sources) -> "_FaultListener | None":
        for known, listener in self._listeners:
            if known == sources:
                return listener
        source = self._make(sources)
        if source is None:
            return None
        listener = _FaultListener(source)
        self._listeners.append((sources, listener))
        listener.start()
        return listener


class _FaultListener(threading.Thread):
    """Runs until `stop` is set. A daemon thread, since a library may block for good."""

    def __init__(self, source: FaultSource) -> None:
        super().__init__(name="faults", daemon=True)
        self.followers: list[_OnFault] = []
        self.stop = threading.Event()
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._failing = Episode(_log, "cannot receive fault events")

    def run(self) -> None:
        try:
            self._source.listen(self._on_fault, self._on_problem, self.stop)
        except Exception as error:  # noqa: BLE001 -- a defect in a source must not end other resources
            self._on_problem(f"{type(error).__name__}: {error}")

    def _on_fault(self, fault: Fault) -> None:
        self._in_loop(lambda: self._pass_on(fault))

    def _on_problem(self, problem: str) -> None:
        self._in_loop(
            lambda: self._failing.failed(problem, level="info") if problem else self._failing.recovered()
        )

    def _pass_on(self, fault: Fault) -> None:
        for on_fault in tuple(self.followers):
            on_fault(fault)

    def _in_loop(self, do: Callable[[], None]) -> None:
        # RuntimeError: the loop has ended, and with it the followers.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(do)
