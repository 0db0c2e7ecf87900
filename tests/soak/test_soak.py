"""A node's day in fast motion: what it takes at its end is what it took at its start.

DEVICELENS_SOAK=5m pytest -s tests/soak
"""

import asyncio
import itertools
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import aiohttp
import pytest

from harness import owners
from harness.trials import ground
from harness.trials.census import cpu
from harness.trials.churn import GPU
from harness.trials.fault import Fault
from harness.trials.trial import Around, Trial, trying
from harness.waiting import until
from runtime.text import parse_duration
from simulator import Faults
from simulator.model import ContainerSpec, PodSpec

SECONDS = parse_duration(os.environ.get("DEVICELENS_SOAK", "6s"))
"""Of the day itself; what is measured before and after it takes some more."""

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(SECONDS + 300)]

DAY = Fault(
    "soak",
    "Soak",
    "A node's day in fast motion",
    "What it takes at its end is what it took at its start",
    short=1,
    full=1,
    memory=16.0,
)
VIEWERS = 10
SAMPLES = 100 if SECONDS >= 60 else 5
"""Allocations of which is told how soon a scrape tells them."""
SCRAPES = 200
MORE = 5.0
"""Milliseconds of CPU that something may take longer at the day's end, and thrice as long besides."""
_PROBES = itertools.count()


class Day:
    """All that happens to a node, counted."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.order = random.Random(7)
        self.counted: Counter[str] = Counter()
        self._numbers = itertools.count()

    async def pass_by(self, seconds: float) -> None:
        """Everything at once, for so long."""
        things: dict[str, tuple[Callable[[], Awaitable[None]], float]] = {
            "restarts of the kubelet": (self.restart_kubelet, max(2.0, seconds / 30)),
            "moments in which it did not answer well": (self.misbehave, max(2.5, seconds / 40)),
            "failed devices": (self.fail_device, 0.4),
            "configurations": (self.reload, max(1.0, seconds / 50)),
        }
        end = time.monotonic() + seconds
        async with self.trial.churning(), asyncio.TaskGroup() as group:
            for name, (thing, pause) in things.items():
                group.create_task(self._again(name, thing, pause, end))
            for _ in range(VIEWERS):
                group.create_task(self._view(end))

    async def _again(self, name: str, thing: Callable[[], Awaitable[None]], pause: float, end: float) -> None:
        while time.monotonic() + pause < end:
            await asyncio.sleep(pause * self.order.uniform(0.5, 1.5))
            await thing()
            self.counted[name] += 1

    async def restart_kubelet(self) -> None:
        await self.trial.kubelet.restart(self.order.choice((0.0, 0.2)))

    async def misbehave(self) -> None:
        """PodResources does not answer as it should for a moment."""
        kinds = (Faults(hang=True), Faults(garbage=True), Faults(error="UNAVAILABLE"), Faults(rate_limited=2))
        await self.trial.kubelet.set_faults(self.order.choice(kinds))
        await asyncio.sleep(0.5)
        await self.trial.kubelet.set_faults(Faults())

    async def fail_device(self) -> None:
        """A device vanishes, held or not, and comes back."""
        device = self.trial.directory / "h" / "etc" / "gpus" / f"gpu-{self.order.randrange(8)}"
        device.unlink()
        await asyncio.sleep(0.1)
        device.touch()

    async def reload(self) -> None:
        """The plugin is given another configuration: a resource comes, or goes again."""
        ground.configure(self.trial.directory, *((ground.SPARE,) if next(self._numbers) % 2 == 0 else ()))
        os.kill(self.trial.plugin.pid, signal.SIGHUP)

    async def _view(self, end: float) -> None:
        """Somebody looks at the page, follows events for a while, and looks at it again."""
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < end:
                async with session.get(f"{self.trial.url}/") as page:
                    assert page.status == 200
                    await page.read()
                self.counted["pages"] += 1
                try:
                    async with (
                        asyncio.timeout(self.order.uniform(0.2, 1.5)),
                        session.get(f"{self.trial.url}/api/v1/events") as events,
                    ):
                        async for _ in events.content:
                            self.counted["lines of events"] += 1
                except TimeoutError:
                    continue


@dataclass
class Rest:
    """Of a node at rest: milliseconds of each scrape and from each allocation until a scrape tells it, the
    exporter's CPU time for one scrape and for one allocation, and the machine's load meanwhile.
    """

    scrapes: list[float] = field(default_factory=list[float])
    told: list[float] = field(default_factory=list[float])
    scrape_cpu: float = 0.0
    allocation_cpu: float = 0.0
    load: float = 0.0


async def _at_rest(trial: Trial) -> Rest:
    rest = Rest()
    async with aiohttp.ClientSession() as session:

        async def names(pod: str) -> bool:
            began = time.perf_counter()
            async with session.get(f"{trial.url}/metrics") as answer:
                text = await answer.text()
            rest.scrapes.append(1000 * (time.perf_counter() - began))
            return f'pod="{pod}"' in text

        for _ in range(SAMPLES):
            async with _probe(trial) as pod:
                await until(f"{pod} is told", partial(names, pod), pause=0.0)
                now = time.time()
                (held,) = (spans for owner, spans in trial.truth.spans.items() if owner.pod == pod)
                rest.told.append(1000 * (now - held[-1].begin))
        used = cpu(trial.exporter.pid)
        for _ in range(SCRAPES):
            await names("")
        rest.scrape_cpu = 1000 * (cpu(trial.exporter.pid) - used) / SCRAPES
    with trial.observer.absent(replaced=False):
        used = cpu(trial.exporter.pid)
        for _ in range(SAMPLES):
            async with _probe(trial):
                pass
        rest.allocation_cpu = 1000 * (cpu(trial.exporter.pid) - used) / SAMPLES
    rest.load = os.getloadavg()[0]
    return rest


@asynccontextmanager
async def _probe(trial: Trial) -> AsyncGenerator[str]:
    """A pod with a device, while in the context."""
    # Whoever is limited to so many calls a second has all of them again.
    await asyncio.sleep(0.3)
    pod = f"probe-{next(_PROBES)}"
    await trial.kubelet.add_pod(PodSpec(pod, containers=(ContainerSpec("main", {GPU: 1}),)))
    yield pod
    await trial.kubelet.delete_pod("default", pod)


def _compared(before: Rest, after: Rest) -> dict[str, list[str]]:
    def percentile(samples: list[float]) -> float:
        return statistics.quantiles(samples, n=100, method="inclusive")[98]

    rows: dict[str, Callable[[Rest], float]] = {
        "exporter, CPU for a scrape, ms": lambda rest: rest.scrape_cpu,
        "exporter, CPU for an allocation and a release, ms": lambda rest: rest.allocation_cpu,
        "scrape, median, ms": lambda rest: statistics.median(rest.scrapes),
        "scrape, 99th percentile, ms": lambda rest: percentile(rest.scrapes),
        "allocation to metric, median, ms": lambda rest: statistics.median(rest.told),
        "allocation to metric, 99th percentile, ms": lambda rest: percentile(rest.told),
        "load of the machine meanwhile": lambda rest: rest.load,
    }
    return {name: [f"{of(rest):.2f}" for rest in (before, after)] for name, of in rows.items()}


async def test_a_day_in_fast_motion() -> None:
    async with trying(DAY, Around(source="pods-api")) as trial:
        day = Day(trial)
        trial.churn.pace = 0.01
        # What is made once has been made by then.
        await day.pass_by(SECONDS / 8)
        await _quiet(trial)
        before = await _at_rest(trial)
        await trial.take_stock()
        refreshes = await _refreshes(trial)
        await day.pass_by(SECONDS)
        await _quiet(trial)
        after = await _at_rest(trial)
        trial.figures |= {
            "pods": trial.churn.added,
            "changes of owners": trial.truth.changes,
            "refreshes": int(await _refreshes(trial) - refreshes),
            **dict(sorted(day.counted.items())),
            **_compared(before, after),
        }
        # Times are the machine's, which may have other things to do by now; what is worked for them is not.
        assert after.scrape_cpu < 3 * before.scrape_cpu + MORE
        assert after.allocation_cpu < 3 * before.allocation_cpu + MORE


async def _quiet(trial: Trial) -> None:
    """The day is over: the pods are gone, and all is told as it is."""
    ground.configure(trial.directory)
    os.kill(trial.plugin.pid, signal.SIGHUP)
    await trial.churn.clear()
    await trial.recovers()


async def _refreshes(trial: Trial) -> float:
    return sum(value for _, value in (await owners.scrape(trial.url)).of("devicelens_refreshes_total"))
