"""Runs a fault repeatedly on a node with a simulated kubelet, and checks the results.

The kubelet runs in the test's process, so the test sees each change at once. The plugin and the exporter are
processes of their own, as on a node.
"""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import owners
from harness.trials import ground, owners_check, row
from harness.trials.census import ONCE, Census, Counted, Granted, census, files
from harness.trials.churn import Churn
from harness.trials.fault import Fault
from harness.trials.ground import ALLOCATABLE, Around
from harness.trials.observer import Observer
from harness.truth import Truth, devices_of
from harness.waiting import until
from simulator import SimulatedKubelet

__all__ = ["Around", "Trial", "trying"]

LIMIT = 60.0
"""Seconds within which everything is well again on a machine that has other things to do."""
_IGNORED = ("h/", "tasks-", "k/simulator", "k/.")
"""Hosts' devices, what tells tasks, and what is the simulated kubelet's own."""


@dataclass
class Trial:
    """One fault, tried. `recoveries`: seconds from its end until everything was told as it is.

    `figures` go into the row; `new_files`: what may lie there in the end that did not before; `stack` ends
    what else a test begins.
    """

    fault: Fault
    around: Around
    directory: Path
    kubelet: SimulatedKubelet
    truth: Truth
    churn: Churn
    exporter: Counted
    plugin: Counted
    observer: Observer
    stack: AsyncExitStack
    url: str = ""
    plugin_url: str = ""
    began: float = field(default_factory=time.monotonic)
    recoveries: list[float] = field(default_factory=list[float])
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    new_files: Counter[str] = field(default_factory=Counter[str])
    _over_at: float = 0.0
    _granted: Granted | None = None
    _before: dict[str, Census] = field(default_factory=dict[str, Census])
    _files: Counter[str] = field(default_factory=Counter[str])

    @property
    def history(self) -> Path:
        """Where history is kept."""
        return ground.history(self.directory, self.around)

    @property
    def processes(self) -> dict[str, Counted]:
        """Both, by name."""
        return {"exporter": self.exporter, "plugin": self.plugin}

    async def rounds(self) -> AsyncIterator[int]:
        """The fault's rounds, numbered. Leaks are counted from the end of the first on: by then has been
        made what is made once. Where there is but one, they are counted from its beginning, and more is
        granted.
        """
        if self.fault.times == 1:
            self._granted = replace(ONCE, memory=ONCE.memory + self.fault.memory)
            await self.take_stock()
        for number in range(self.fault.times):
            yield number
            if number == 0 and self.fault.times > 1:
                await self.take_stock()

    @asynccontextmanager
    async def churning(self) -> AsyncGenerator[None]:
        """Add and delete pods while in the context; its end is the end of the fault."""
        async with self.churn.going_on():
            yield
        self._over_at = self.churn.ended_at

    @asynccontextmanager
    async def disturbed(self) -> AsyncGenerator[None]:
        """One round: `churning` while in the context, after which it `recovers`."""
        async with self.churning():
            yield
        await self.recovers()

    async def recovers(self) -> None:
        """Wait until all reports are correct, and record the seconds since the end of the fault."""
        try:
            await until("all reports are correct", self.settled, limit=LIMIT)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.account()}") from error
        self.recoveries.append(time.monotonic() - self._over_at)

    async def settled(self) -> bool:
        """Compare all reports with the kubelet; raises AssertionError for a difference."""
        self.truth.look()
        changes, kubelet = self.truth.changes, self.kubelet
        for resource, count in ALLOCATABLE.items():
            assert kubelet.allocatable(resource) == count, f"{resource} is not allocatable in full"
            assert kubelet.streams(resource) == 1, f"{resource} has {kubelet.streams(resource)} streams"
        for url in (self.plugin_url, self.url):
            status, text = await owners.get(url, "/-/ready")
            assert status == 200, text
        proven = self.around.source == "pods-api"
        wanted = frozenset(one if proven else one._replace(uid="") for one in self.truth.present)
        known = devices_of(kubelet.pod_resources(), kubelet.allocatable_resources())
        await owners_check.check_metrics(
            self.url, wanted, {key: one.healthy is True for key, one in known.items()}
        )
        await owners_check.check_api(self.url, wanted)
        await owners_check.check_history(self.url, wanted, time.time() + max(self.observer.ahead))
        self.truth.look()
        assert changes == self.truth.changes, "it had not settled"
        return True

    async def says(self, code: str, words: str = "") -> None:
        """Wait until the exporter says, by this gRPC code and with these words, that the kubelet does not
        answer as it should.
        """

        async def failing() -> bool:
            status, text = await owners.get(self.url, "/-/ready")
            assert status == 503, text
            assert code in text, text
            assert words in text, text
            samples = await owners.scrape(self.url)
            assert samples.value("devicelens_up") == 0
            errors = samples.of("devicelens_refresh_errors_total", code=code)
            assert any(value > 0 for _, value in errors), errors
            return True

        await until(f"the exporter says {code}", failing, limit=LIMIT)
        assert (await owners.get(self.url, "/-/healthy"))[0] == 200

    @asynccontextmanager
    async def without_exporter(self) -> AsyncGenerator[None]:
        """While in the context nobody has to answer; after it another one runs, if the first does not."""
        with self.observer.absent():
            yield
            if self.exporter.status is not None:
                self.exporter.lines.clear()
                await self.exporter.start()
                self.url = await self.exporter.url()

    async def take_stock(self) -> None:
        """Count resources once they are stable; `verdict` compares with this count."""

        async def steady() -> bool:
            before, self._before = self._before, await self._count()
            return before.keys() == self._before.keys() and all(
                (one.tasks, one.threads, one.descriptors)
                == (before[name].tasks, before[name].threads, before[name].descriptors)
                for name, one in self._before.items()
            )

        await until("nothing comes and goes any more", steady, limit=LIMIT, pause=0.3)
        self._files = self._there()

    async def _count(self) -> dict[str, Census]:
        return {name: await census(process) for name, process in self.processes.items()}

    def _there(self) -> Counter[str]:
        found = files(self.directory)
        return Counter({name: count for name, count in found.items() if not name.startswith(_IGNORED)})

    async def verdict(self) -> None:
        """Check for leaks and wrong reports, and write the row in any case. Raises AssertionError."""
        leaks: list[str] = []
        after: dict[str, Census] = {}

        async def nothing_more() -> bool:
            after.update(await self._count())
            found = {
                name: after[name].beyond(before, self._granted or Granted(memory=self.fault.memory))
                for name, before in self._before.items()
            }
            leaks[:] = [f"{name}: {more}" for name, more in found.items() if more]
            left = self._there() - self._files - self.new_files
            leaks.extend([f"files: {dict(left)}"] if left else [])
            assert not leaks, leaks
            return True

        # The row tells it either way.
        with suppress(AssertionError):
            await until("nothing has leaked", nothing_more, limit=LIMIT, pause=0.5)
        row.write(self, self._before, after, leaks)
        assert not self.observer.problems, self.account()
        assert not leaks, f"{leaks}\n{self.account()}"
        assert self.observer.seen.scrapes > 0
        assert self.fault.withdraws or self.observer.seen.withdrawn == 0
        assert self.churn.added > 0
        assert len(self.recoveries) >= self.fault.times, "a round was not recovered from"

    async def end(self) -> None:
        """Stop both processes: each exits with 0 and leaves no socket. Raises AssertionError."""
        for name, process in self.processes.items():
            status = await process.stop()
            assert status == 0, f"the {name} ended with {status}"
        left = [path.name for path in self.directory.rglob("*") if path.is_socket()]
        assert not [name for name in left if name.startswith(("devicelens", "plugin"))], left

    def account(self) -> str:
        """The problems and counts of the observer, for a failure message."""
        return "\n".join([*self.observer.problems, str(self.observer.seen)])


@asynccontextmanager
async def trying(fault: Fault, around: Around | None = None, *, seed: int = 1) -> AsyncGenerator[Trial]:
    """A healthy node with pods. After the context, checks that it is as healthy as before."""
    around = around or Around()
    directory = Path(tempfile.mkdtemp(prefix="dl-"))
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        ground.prepare(directory)
        truth = Truth()
        kubelet = SimulatedKubelet(
            directory / "k",
            cpus=0,
            memory=0,
            pods_api=around.source == "pods-api",
            seed=seed,
            on_event=truth.told,
        )
        truth.kubelet = await stack.enter_async_context(kubelet)
        stack.enter_context(kubelet.following(truth.followed))
        trial = Trial(
            *(fault, around, directory, kubelet, truth, Churn(kubelet, seed)),
            *(ground.exporter(directory, around), ground.plugin(directory, around)),
            *(Observer(truth, lambda: trial.url, around.stale_after), stack),
            plugin_url=ground.plugin_url(directory),
        )
        await stack.enter_async_context(trial.plugin)
        await stack.enter_async_context(trial.exporter)
        trial.url = await trial.exporter.url()
        await kubelet.wait_until(_allocatable, limit=LIMIT)
        await trial.churn.begin()
        await until("all reports are correct", trial.settled, limit=LIMIT)
        async with trial.observer.watching():
            yield trial
            await trial.verdict()
        await trial.end()
        assert kubelet.violations == ()


def _allocatable(kubelet: SimulatedKubelet) -> bool:
    return all(kubelet.allocatable(name) == count for name, count in ALLOCATABLE.items())
