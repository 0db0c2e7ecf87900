"""Asks the probes of one resource: some with each look, others on a clock of their own.

One GET of a probe.
"""

import asyncio
import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from glob import escape
from typing import Final

import aiohttp

from plugin.config.plan import ProbePlan
from plugin.devices.device import Device
from plugin.devices.health import Health, concerns
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Fault
from plugin.serving.blocking import ProbeRunner
from plugin.serving.probes import Question, questions
from plugin.serving.scan import bounded
from runtime.clock import Clock

MOST_REQUESTS: Final = 16
"""Requests of one resource that are under way at the same time."""

_Key = tuple[str, int]


class Prober:
    """Keeps a resource's health up to date. Run `run()`; say with `survey` which devices there are."""

    def __init__(
        self,
        probes: tuple[ProbePlan, ...],
        *,
        host: HostRoot,
        health: Health,
        clock: Clock,
        spread: Callable[[], float],
        changed: Callable[[Collection[str]], None],
    ) -> None:
        """`spread` gives numbers from 0 to 1; `changed` is called with devices that are well, or not, now."""
        self._probes = probes
        self._host = host
        self._health = health
        self._clock = clock
        self._spread = spread
        self._changed = changed
        self._asking = ProbeRunner()
        self._requests = asyncio.Semaphore(MOST_REQUESTS)
        self._devices: dict[str, tuple[Device, tuple[Question, ...]]] = {}
        self._watchers: dict[str, set[_Key]] = {}
        self._queue: list[tuple[float, str, int]] = []
        self._next: dict[_Key, float] = {}
        """When each probe with an interval is asked next; what else is in the queue is of the past."""
        self._begun: dict[_Key, bool] = {}
        self._wanted: dict[_Key, None] = {}
        self._news: set[str] = set()
        self._wake = asyncio.Event()

    def survey(self, devices: Mapping[str, Device]) -> None:
        """These devices are there, and no others; what is asked with each look is asked."""
        if not self._probes:
            return
        for device_id in self._devices.keys() - devices.keys():
            self.left(device_id)
        for device in devices.values():
            self.arrived(device)
        self._want((d, q.probe) for d, (_, asked) in self._devices.items() for q in asked if q.with_looks)

    def arrived(self, device: Device) -> None:
        """The device is there, perhaps as another than before."""
        known = self._devices.get(device.id)
        if not self._probes or (known is not None and known[0] is device):
            return
        self.left(device.id)
        asked = tuple(questions(self._probes, device, self._host))
        self._devices[device.id] = device, asked
        for question in asked:
            if question.interval:
                self._plan_next(question, self._clock.monotonic())
            if question.path and question.with_looks:
                self._watchers.setdefault(question.path, set()).add((device.id, question.probe))
        self._want((device.id, q.probe) for q in asked if q.with_looks)

    def left(self, device_id: str) -> None:
        """The device is not there any more."""
        known = self._devices.pop(device_id, None)
        for question in known[1] if known is not None else ():
            self._next.pop((device_id, question.probe), None)
            keys = self._watchers.get(question.path)
            if keys is not None:
                keys.discard((device_id, question.probe))
                if not keys:
                    del self._watchers[question.path]

    @property
    def follow(self) -> tuple[tuple[str, str], ...]:
        """Directories, with patterns of the entries, that tell of what probes look at."""
        pairs: dict[tuple[str, str], None] = {}
        for path in sorted(self._watchers):
            parent, _, name = path.rstrip("/").rpartition("/")
            pairs[parent or "/", escape(name)] = None
        return bounded(pairs)

    def touched(self, directory: str, name: str) -> bool:
        """Ask what looks at that entry; whether anything does."""
        path = f"{directory.rstrip('/')}/{name}"
        keys = self._watchers.get(path) or self._watchers.get(f"{path}/") or ()
        self._want(keys)
        return bool(keys)

    def fault(self, fault: Fault) -> None:
        """Take in what was heard of a fault."""
        now = self._clock.monotonic()
        meant = [device for device, _ in self._devices.values() if concerns(fault, device)]
        self._news.update(device.id for device in meant if self._health.fault(device, fault, now))
        self._wake.set()

    async def run(self) -> None:
        """Ask what is to be asked when it is due, until cancelled."""
        self._begun.clear()
        for _, asked in self._devices.values():
            for question in asked:
                self._again(question, self._clock.monotonic())
        async with asyncio.TaskGroup() as group:
            while True:
                now = self._clock.monotonic()
                news, self._news = self._news.union(self._health.advance(now)), set()
                if news:
                    self._changed(news)
                due = [*self._due(now), *self._take_wanted()]
                if due:
                    group.create_task(self._ask(due))
                await self._pause()

    def _want(self, keys: Iterable[_Key]) -> None:
        self._wanted.update(dict.fromkeys(keys))
        self._wake.set()

    def _due(self, now: float) -> list[Question]:
        """What is due by its interval."""
        due: list[Question] = []
        while self._queue and self._queue[0][0] <= now:
            time, device_id, probe = heapq.heappop(self._queue)
            question = self._question(device_id, probe)
            if question is not None and self._next.get((question.device, question.probe)) == time:
                del self._next[question.device, question.probe]
                if (question.device, question.probe) not in self._begun:
                    self._begun[question.device, question.probe] = False
                    due.append(question)
        return due

    def _take_wanted(self) -> list[Question]:
        """What is wanted now; what is being asked already is asked once more after that."""
        wanted, self._wanted = self._wanted, {}
        taken: list[Question] = []
        for key in wanted:
            question = self._question(*key)
            if key in self._begun:
                self._begun[key] = True
            elif question is not None:
                self._begun[key] = False
                taken.append(question)
        return taken

    def _question(self, device_id: str, probe: int) -> Question | None:
        known = self._devices.get(device_id)
        return None if known is None else next((q for q in known[1] if q.probe == probe), None)

    async def _pause(self) -> None:
        """Wait until something is due, or is wanted."""
        times = [self._queue[0][0]] if self._queue else []
        if self._health.due is not None:
            times.append(self._health.due)
        limit = max(0.0, min(times) - self._clock.monotonic()) if times else None
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._wake.wait()
        self._wake.clear()

    async def _ask(self, due: list[Question]) -> None:
        async with asyncio.TaskGroup() as group:
            for question in due:
                if question.ask is None:
                    group.create_task(self._request(question))
            await self._asking.ask([q for q in due if q.ask is not None], self._answered)

    async def _request(self, question: Question) -> None:
        # Imported where it is asked for: most resources ask nothing over HTTP.

        async with self._requests:
            self._answered(question, await get(question))

    def _answered(self, question: Question, reason: str) -> None:
        key = (question.device, question.probe)
        again = self._begun.pop(key, False)
        now = self._clock.monotonic()
        current = self._question(*key)
        if current is None:
            return
        if current is not question:
            # It was about the device as it was before.
            self._again(current, now)
            return
        if again:
            self._again(question, now)
        elif question.interval:
            # At first all are asked at once; then each at a moment of its own.
            least = 0.5 if self._health.reason(question.device) is None else 0.9
            self._plan_next(question, now + question.interval * (least + (1.1 - least) * self._spread()))
        if self._health.answer(question.device, question.probe, reason, now):
            self._news.add(question.device)
        self._wake.set()

    def _again(self, question: Question, now: float) -> None:
        if question.interval:
            self._plan_next(question, now)
        else:
            self._want(((question.device, question.probe),))

    def _plan_next(self, question: Question, time: float) -> None:
        key = (question.device, question.probe)
        self._next[key] = time
        heapq.heappush(self._queue, (time, *key))
        self._wake.set()


async def get(question: Question) -> str:
    """Why the answer to the question's GET is not as it should be; empty where it is.

    Each has a connection of its own, as a client has that comes for the first time. Redirections are
    answers too, and nothing of a body is read.
    """
    timeout = aiohttp.ClientTimeout(total=None)
    try:
        async with (
            asyncio.timeout(question.timeout),
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(question.url, allow_redirects=False) as answer,
        ):
            status = answer.status
    except TimeoutError:
        return f"{question.url}: no answer within {question.timeout:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return f"{question.url}: {str(error) or type(error).__name__}"
    well = 200 <= status <= 299 if question.status is None else status in question.status
    return "" if well else f"{question.url}: status {status}"
