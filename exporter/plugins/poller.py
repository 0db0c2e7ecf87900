"""Polls device plugins for their reports and has them read into the mapping.

Each plugin is polled when the mapping changes and every INTERVAL seconds besides. The last report of a silent
plugin is kept for as long as the kubelet keeps its endpoint, then dropped. Nothing else waits for this.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from msgspec import Struct, field, structs
from msgspec.structs import replace

from exporter.mapping.model import (
    FORGOTTEN_AFTER,
    AdvertisedDevice,
    AdvertisedResource,
    PluginReport,
    PluginReports,
    merge_reports,
)
from exporter.mapping.state import StateStore
from exporter.plugins.client import PluginDocument, PluginError
from exporter.refresh.protocols import NoRequests, RefreshRequests, Trigger
from runtime.log import Episode, Log

SPACING: Final = 1.0
"""Least seconds between two polls of one plugin."""
INTERVAL: Final = 15.0
"""Seconds after which a plugin is polled although nothing changed; the longest pause after a failure."""
_CALM: Final = 60.0
"""Seconds for which a plugin that does not answer is not logged again for another reason."""

_log = Log("plugins")


class PluginEndpoint(Protocol):
    """The API of one plugin."""

    @property
    def source(self) -> str:
        """Its address."""
        ...

    async def fetch(self, known: bytes = b"") -> PluginDocument | None:
        """Fetch its report; None if its digest is `known`. Raises PluginError."""
        ...


class PollPace(Struct, frozen=True):
    """Times of polling, in seconds."""

    spacing: float = SPACING
    interval: float = INTERVAL
    forgotten_after: float = FORGOTTEN_AFTER


class _Plugin(Struct):
    """One plugin and its state. `answered_at` is the event loop's time."""

    endpoint: PluginEndpoint
    failing: Episode
    report: PluginReport
    digest: bytes = b""
    answered_at: float = 0.0
    failures: int = 0
    due: asyncio.Event = field(default_factory=asyncio.Event)


class PluginPoller:
    """The refresh loop's PluginSource. `bind` it to the loop, then `run` it as an actor."""

    def __init__(
        self,
        endpoints: Sequence[PluginEndpoint],
        states: StateStore,
        *,
        clock: Callable[[], float],
        pace: PollPace | None = None,
    ) -> None:
        """`clock` returns unix time; pauses are the event loop's own."""
        self._states = states
        self._clock = clock
        self._pace = pace or PollPace()
        self._plugins = [
            _Plugin(
                endpoint,
                Episode(_log, "a plugin does not report its devices", calm=_CALM, url=endpoint.source),
                PluginReport(endpoint.source, problem="not polled yet"),
            )
            for endpoint in endpoints
        ]
        self._advertised = merge_reports(plugin.report for plugin in self._plugins)
        self._merging = asyncio.Lock()
        self._requests: RefreshRequests = NoRequests()

    @property
    def advertised(self) -> PluginReports:
        """The present reports."""
        return self._advertised

    def bind(self, requests: RefreshRequests) -> None:
        """Set the refresh loop."""
        self._requests = requests

    async def run(self) -> None:
        """Poll until cancelled."""
        async with asyncio.TaskGroup() as group:
            for plugin in self._plugins:
                group.create_task(self._poll_loop(plugin))
            group.create_task(self._poll_on_changes())

    async def _poll_on_changes(self) -> None:
        seen = None
        async for state in self._states.follow():
            if state.snapshot is not seen:
                seen = state.snapshot
                for plugin in self._plugins:
                    plugin.due.set()

    async def _poll_loop(self, plugin: _Plugin) -> None:
        loop = asyncio.get_running_loop()
        plugin.answered_at = loop.time()
        while True:
            plugin.due.clear()
            began = loop.time()
            try:
                document = await plugin.endpoint.fetch(plugin.digest)
            except PluginError as error:
                await self._fail(plugin, str(error))
            except Exception as error:  # noqa: BLE001 -- an unforeseen answer must not end the process
                await self._fail(plugin, f"{type(error).__name__}: {error}")
            else:
                await self._succeed(plugin, document)
            await asyncio.sleep(max(0.0, began + self._pace.spacing - loop.time()))
            try:
                async with asyncio.timeout(self._pause(plugin)):
                    await plugin.due.wait()
            except TimeoutError:
                pass

    def _pause(self, plugin: _Plugin) -> float:
        if not plugin.failures:
            return self._pace.interval
        longest = min(self._pace.interval, self._pace.spacing * 2.0 ** min(plugin.failures - 1, 10))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 -- jitter

    async def _succeed(self, plugin: _Plugin, document: PluginDocument | None) -> None:
        plugin.failures = 0
        plugin.answered_at = asyncio.get_running_loop().time()
        plugin.failing.recovered()
        if document is not None:
            plugin.digest = document.digest
            report = PluginReport(plugin.report.source, document.resources, self._clock())
            await self._update(plugin, report)
        elif plugin.report.problem:
            await self._update(plugin, replace(plugin.report, problem="", silent_since=None))

    async def _fail(self, plugin: _Plugin, problem: str) -> None:
        plugin.failures += 1
        plugin.failing.failed(problem)
        report = plugin.report
        silent = asyncio.get_running_loop().time() - plugin.answered_at
        if report.resources and silent > self._pace.forgotten_after:
            plugin.digest = b""
            report = PluginReport(report.source, silent_since=report.silent_since)
        since = report.silent_since
        if since is None and report.received_at is not None:
            since = self._clock() - silent
        await self._update(plugin, replace(report, problem=problem, silent_since=since))

    async def _update(self, plugin: _Plugin, report: PluginReport) -> None:
        """Take over a report, in a thread: a plugin may have ten thousand devices."""
        async with self._merging:
            reports = [report if one is plugin else one.report for one in self._plugins]
            at = self._plugins.index(plugin)
            merged = await asyncio.to_thread(_merged, reports, at, plugin.report, self._advertised)
            if merged is None:
                return
            self._advertised, relists = merged
            plugin.report = self._advertised.reports[at]
        if relists:
            self._requests.trigger(Trigger.PLUGIN)
        else:
            self._requests.reconsider()


def _merged(
    reports: list[PluginReport], at: int, last: PluginReport, before: PluginReports
) -> tuple[PluginReports, bool] | None:
    """The merged `reports`, of which the one at index `at` followed `last`, and whether they may change what
    is allocatable. None if nothing changed.
    """
    if reports[at] == last:
        return None
    reports[at] = _sharing(reports[at], last)
    after = merge_reports(reports)
    return after, _may_change_allocatable(before, after)


def _sharing(report: PluginReport, last: PluginReport) -> PluginReport:
    """`report` with the devices of `last` that did not change: readers recognise them by identity."""
    resources: dict[str, AdvertisedResource] = {}
    for name, resource in report.resources.items():
        known = last.resources[name].devices if name in last.resources else {}
        devices = {
            key: was if (was := known.get(key)) is not None and was == device else device
            for key, device in resource.devices.items()
        }
        resources[name] = structs.replace(resource, devices=MappingProxyType(devices))
    return replace(report, resources=MappingProxyType(resources))


def _may_change_allocatable(before: PluginReports, after: PluginReports) -> bool:
    """Whether more changed than an allocation changes, which the kubelet shows by itself."""
    if before.devices.keys() != after.devices.keys() or _served(before) != _served(after):
        return True
    pairs = [(before.devices[key], device) for key, device in after.devices.items()]
    return any(was is not now and _lasting(was) != _lasting(now) for was, now in pairs)


def _served(advertised: PluginReports) -> dict[str, tuple[bool, bool]]:
    return {name: (one.report.answers, one.resource.served) for name, one in advertised.resources.items()}


def _lasting(device: AdvertisedDevice) -> tuple[bool, tuple[int, ...]]:
    return device.healthy, device.numa_nodes
