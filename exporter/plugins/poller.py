"""Asks plugins what they tell of their devices, and has it read into the mapping.

Each is asked when the mapping changes, for that is when it has something to tell, and now and then besides.
A document that is the one before costs nothing. What a plugin that answers no more had told is kept for as
long as the kubelet keeps its place, then forgotten. Nothing else waits for any of this.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from exporter.mapping.model import (
    FORGOTTEN_AFTER,
    AdvertisedDevice,
    PluginReport,
    PluginReports,
    merge_reports,
)
from exporter.mapping.state import StateStore
from exporter.plugins.client import PluginDocument, PluginError
from exporter.refresh.protocols import Trigger
from runtime.log import Episode, Log

SPACING: Final = 1.0
"""Least seconds between two questions to one plugin."""
INTERVAL: Final = 15.0
"""Seconds after which a plugin is asked although nothing changed; the longest pause after a failure."""
_CALM: Final = 60.0
"""Seconds for which a plugin that does not answer is not told of again for another reason."""

_log = Log("plugins")


class PluginEndpoint(Protocol):
    """One plugin."""

    @property
    def source(self) -> str:
        """Its address."""
        ...

    async def ask(self, known: bytes = b"") -> PluginDocument | None:
        """What it tells; None if it is the document of the digest `known`. Raises PluginError."""
        ...


@dataclass(frozen=True, slots=True)
class PollPace:
    """When plugins are asked, and how long the word of one that is silent is kept, in seconds."""

    spacing: float = SPACING
    interval: float = INTERVAL
    forgotten_after: float = FORGOTTEN_AFTER


@dataclass(slots=True)
class _Line:
    """One plugin, and how things stand with it. `heard` is steady time."""

    source: PluginEndpoint
    episode: Episode
    report: PluginReport
    digest: bytes = b""
    heard: float = 0.0
    failures: int = 0
    wanted: asyncio.Event = field(default_factory=asyncio.Event)


class PluginPoller:
    """Knows what plugins tell. `bind` it to the refresh loop, then `run` it as an actor."""

    def __init__(
        self,
        sources: Sequence[PluginEndpoint],
        states: StateStore,
        *,
        clock: Callable[[], float],
        pace: PollPace | None = None,
    ) -> None:
        """`clock` tells unix time; pauses are the event loop's own."""
        self._board = states
        self._clock = clock
        self._pace = pace or PollPace()
        self._lines = [
            _Line(
                source,
                Episode(_log, "a plugin does not tell of its devices", calm=_CALM, url=source.source),
                PluginReport(source.source, problem="it has not been asked yet"),
            )
            for source in sources
        ]
        self._advertised = merge_reports(line.report for line in self._lines)
        self._trigger: Callable[[Trigger], None] = lambda _: None
        self._reconsider: Callable[[], None] = lambda: None

    @property
    def advertised(self) -> PluginReports:
        """What they tell at this moment."""
        return self._advertised

    def bind(self, *, trigger: Callable[[Trigger], None], reconsider: Callable[[], None]) -> None:
        """Whom to tell: of what the kubelet should be asked about, and of what else is told."""
        self._trigger = trigger
        self._reconsider = reconsider

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as group:
            for line in self._lines:
                group.create_task(self._follow(line))
            group.create_task(self._wake())

    async def _wake(self) -> None:
        """Have every plugin asked whenever the mapping changes."""
        seen = None
        async for state in self._board.follow():
            if state.snapshot is not seen:
                seen = state.snapshot
                for line in self._lines:
                    line.wanted.set()

    async def _follow(self, line: _Line) -> None:
        loop = asyncio.get_running_loop()
        line.heard = loop.time()
        while True:
            line.wanted.clear()
            began = loop.time()
            try:
                told = await line.source.ask(line.digest)
            except PluginError as error:
                self._silent(line, str(error))
            except Exception as error:  # noqa: BLE001 -- what nobody foresaw must not end the process
                self._silent(line, f"{type(error).__name__}: {error}")
            else:
                self._heard(line, told)
            await asyncio.sleep(max(0.0, began + self._pace.spacing - loop.time()))
            try:
                async with asyncio.timeout(self._pause(line)):
                    await line.wanted.wait()
            except TimeoutError:
                pass

    def _pause(self, line: _Line) -> float:
        if not line.failures:
            return self._pace.interval
        longest = min(self._pace.interval, self._pace.spacing * 2.0 ** min(line.failures - 1, 10))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 -- jitter

    def _heard(self, line: _Line, told: PluginDocument | None) -> None:
        line.failures = 0
        line.heard = asyncio.get_running_loop().time()
        line.episode.recovered()
        if told is not None:
            line.digest = told.digest
            self._tell(line, PluginReport(line.report.source, told.resources, self._clock()))
        elif line.report.problem:
            self._tell(line, replace(line.report, problem="", silent_since=None))

    def _silent(self, line: _Line, problem: str) -> None:
        line.failures += 1
        line.episode.failed(problem)
        report = line.report
        silent = asyncio.get_running_loop().time() - line.heard
        if report.resources and silent > self._pace.forgotten_after:
            line.digest = b""
            report = PluginReport(report.source, silent_since=report.silent_since)
        since = report.silent_since
        if since is None and report.received_at is not None:
            since = self._clock() - silent
        self._tell(line, replace(report, problem=problem, silent_since=since))

    def _tell(self, line: _Line, report: PluginReport) -> None:
        if report == line.report:
            return
        line.report = report
        before, self._advertised = self._advertised, merge_reports(each.report for each in self._lines)
        if _concerns_the_kubelet(before, self._advertised):
            self._trigger(Trigger.PLUGIN)
        else:
            self._reconsider()


def _concerns_the_kubelet(before: PluginReports, after: PluginReports) -> bool:
    """Whether more changed than what an allocation changes, of which the kubelet tells by itself."""
    if before.devices.keys() != after.devices.keys() or _followed(before) != _followed(after):
        return True
    return any(_lasting(before.devices[key]) != _lasting(told) for key, told in after.devices.items())


def _followed(advertised: PluginReports) -> dict[str, tuple[bool, bool]]:
    return {name: (word.report.answers, word.resource.served) for name, word in advertised.resources.items()}


def _lasting(told: AdvertisedDevice) -> tuple[bool, tuple[int, ...]]:
    return told.healthy, told.numa_nodes
