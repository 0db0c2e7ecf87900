"""exporter.plugins.poller: when plugins are polled, and what their reports lead to."""

import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
from msgspec import structs

from exporter.mapping.model import (
    AdvertisedDevice,
    AdvertisedResource,
    Device,
    DeviceKey,
    PluginReport,
    PluginReports,
    Snapshot,
    merge_reports,
)
from exporter.mapping.state import State, StateStore
from exporter.plugins import poller
from exporter.plugins.client import PluginDocument, PluginError
from exporter.plugins.poller import PluginPoller, PollPace
from exporter.refresh.protocols import Trigger
from harness.requests import RecordedRequests
from harness.waiting import background, until_holds

R = "example.com/gpu"


def resource(
    *, reason: str = "", last_allocated: float | None = None, streams: int = 1
) -> dict[str, AdvertisedResource]:
    device = AdvertisedDevice(not reason, reason, last_allocated=last_allocated)
    return {R: AdvertisedResource(registered=True, streams=streams, devices={"d": device})}


@dataclass
class Scripted:
    """A plugin that tells what it is set to."""

    source: str = "unix:/p"
    resources: dict[str, AdvertisedResource] = field(default_factory=resource)
    error: Exception | None = None
    asked: list[bytes] = field(default_factory=list[bytes])

    def polled(self, times: int) -> bool:
        return len(self.asked) >= times

    async def fetch(self, known: bytes = b"") -> PluginDocument | None:
        self.asked.append(known)
        if self.error is not None:
            raise self.error
        digest = repr(self.resources).encode()
        return None if digest == known else PluginDocument(self.resources, digest)


@dataclass(kw_only=True)
class Running(RecordedRequests):
    """Everything around plugins that are asked."""

    plugins: PluginPoller
    states: StateStore
    now: float = 1000.0

    def change(self) -> None:
        """The mapping changes."""
        generation = self.states.state.generation + 1
        device = Device(DeviceKey(R, f"d{generation}"))
        self.states.publish(State(generation=generation, snapshot=Snapshot((device,))))

    @property
    def reason(self) -> str:
        return self.plugins.advertised.devices[DeviceKey(R, "d")].reason


@asynccontextmanager
async def running(
    *sources: Scripted, spacing: float = 0.01, interval: float = 3600.0, forgotten_after: float = 3600.0
) -> AsyncGenerator[Running]:
    """Plugins that are polled; the reports of those without an error have come."""
    states = StateStore()
    world: Running
    plugins = PluginPoller(
        sources, states, clock=lambda: world.now, pace=PollPace(spacing, interval, forgotten_after)
    )
    world = Running(plugins=plugins, states=states)
    plugins.bind(world)
    async with background(plugins.run()):
        await until_holds(lambda: world.triggers or any(source.error for source in sources))
        yield world


async def test_plugin_has_no_report_before_the_first_poll() -> None:
    plugins = PluginPoller([Scripted()], StateStore(), clock=lambda: 0.0)
    (report,) = plugins.advertised.reports
    assert (report.source, report.answers, report.received_at) == ("unix:/p", False, None)


async def test_first_report_causes_a_refresh() -> None:
    plugin = Scripted(resources=resource(reason="dust"))
    async with running(plugin) as world:
        assert world.triggers == [Trigger.PLUGIN]
        (report,) = world.plugins.advertised.reports
        assert (report.answers, report.received_at, report.problem) == (True, 1000.0, "")
        assert world.reason == "dust"


async def test_changed_mapping_causes_a_poll() -> None:
    plugin = Scripted()
    async with running(plugin) as world:
        before = world.plugins.advertised
        for asked in (1, 2, 3):
            world.change()
            await until_holds(partial(plugin.polled, asked + 1))
        assert world.plugins.advertised is before
        assert world.triggers == [Trigger.PLUGIN]
        assert world.reconsidered == 0


async def test_state_with_the_same_mapping_causes_no_poll() -> None:
    plugin = Scripted()
    async with running(plugin) as world:
        world.change()
        await until_holds(partial(plugin.polled, 2))
        asked = len(plugin.asked)
        for taken in range(5):
            state = world.states.state
            world.states.publish(State(generation=state.generation, snapshot=state.snapshot, taken_at=taken))
            await asyncio.sleep(0.015)
        # The first state may have caused one poll more.
        assert len(plugin.asked) <= asked + 1


async def test_plugin_is_polled_each_interval() -> None:
    plugin = Scripted()
    async with running(plugin, interval=0.01) as world:
        await until_holds(lambda: len(plugin.asked) >= 5)
        plugin.resources = resource(reason="dust")
        await until_holds(lambda: world.reason == "dust")
        assert world.triggers == [Trigger.PLUGIN, Trigger.PLUGIN]


async def test_reports_are_merged_in_a_thread_and_unchanged_devices_stay_the_same_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []

    def merged(reports: Iterable[PluginReport]) -> PluginReports:
        threads.append(threading.current_thread())
        return merge_reports(reports)

    def reported(reason: str) -> dict[str, AdvertisedResource]:
        (found,) = resource(reason=reason).values()
        return {R: structs.replace(found, devices={**found.devices, "e": AdvertisedDevice(healthy=True)})}

    plugin = Scripted(resources=reported("dust"))
    async with running(plugin) as world:
        before = world.plugins.advertised.devices
        monkeypatch.setattr(poller, "merge_reports", merged)
        plugin.resources = reported("rust")
        world.change()
        await until_holds(lambda: world.reason == "rust")
        after = world.plugins.advertised.devices
    assert after[DeviceKey(R, "e")] is before[DeviceKey(R, "e")]
    assert threads
    assert threading.main_thread() not in threads


async def test_constant_changes_keep_the_spacing() -> None:
    times: list[float] = []

    class Timed(Scripted):
        async def fetch(self, known: bytes = b"") -> PluginDocument | None:
            times.append(asyncio.get_running_loop().time())
            return await super().fetch(known)

    async with running(Timed(), spacing=0.05) as world:
        while len(times) < 4:
            world.change()
            await asyncio.sleep(0.001)
    assert all(later - earlier >= 0.045 for earlier, later in itertools.pairwise(times))


async def test_allocation_causes_a_reread_only() -> None:
    plugin = Scripted()
    async with running(plugin) as world:
        plugin.resources = resource(last_allocated=990.0)
        world.change()
        await until_holds(lambda: world.reconsidered == 1)
        assert world.triggers == [Trigger.PLUGIN]
        assert world.plugins.advertised.devices[DeviceKey(R, "d")].last_allocated == 990.0


@pytest.mark.parametrize("other", [resource(reason="x"), resource(streams=0), {}])
async def test_changed_devices_cause_a_refresh(other: dict[str, AdvertisedResource]) -> None:
    plugin = Scripted()
    async with running(plugin) as world:
        plugin.resources = other
        world.change()
        await until_holds(lambda: len(world.triggers) == 2)


async def test_silent_plugin_is_logged_once_and_its_report_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    plugin = Scripted(resources=resource(reason="dust"))
    async with running(plugin, interval=0.02) as world:
        plugin.error = PluginError("connection refused")
        world.now = 1010.0
        await until_holds(lambda: not world.plugins.advertised.answers(R))
        asked = len(plugin.asked)
        await until_holds(lambda: len(plugin.asked) > asked + 3)
        assert world.reason == "dust"
        (report,) = world.plugins.advertised.reports
        assert (report.problem, report.received_at) == ("connection refused", 1000.0)
        assert report.silent_since is not None
        assert 1000.0 < report.silent_since <= 1010.0
        said = [r.getMessage() for r in caplog.records if r.name == "devicelens.plugins"]
        assert said == ["a plugin does not report its devices"]
        assert world.triggers == [Trigger.PLUGIN] * 2
        plugin.error = None
        await until_holds(lambda: world.plugins.advertised.answers(R))
        said = [r.getMessage() for r in caplog.records if r.name == "devicelens.plugins"]
        assert said[1:] == ["a plugin does not report its devices: over"]
        (again,) = world.plugins.advertised.reports
        assert (again.answers, again.silent_since, again.received_at) == (True, None, 1000.0)


async def test_report_of_a_silent_plugin_expires_and_returns() -> None:
    plugin = Scripted()
    async with running(plugin, interval=0.02, forgotten_after=0.2) as world:
        plugin.error = PluginError("connection refused")
        await until_holds(lambda: not world.plugins.advertised.devices)
        (report,) = world.plugins.advertised.reports
        assert (report.received_at, report.resources) == (None, {})
        plugin.error = None
        silent = len(plugin.asked)
        await until_holds(lambda: world.plugins.advertised.serves(R))
        assert plugin.asked[silent] == b"", "the document is needed whole"


async def test_unexpected_error_does_not_end_the_poller() -> None:
    plugin = Scripted(error=ZeroDivisionError("odd"))
    async with running(plugin, interval=0.02) as world:
        await until_holds(lambda: len(plugin.asked) > 2)
        (report,) = world.plugins.advertised.reports
        assert report.problem == "ZeroDivisionError: odd"
        plugin.error = None
        await until_holds(lambda: world.plugins.advertised.serves(R))


async def test_hanging_plugin_does_not_delay_another() -> None:
    class Hangs(Scripted):
        async def fetch(self, known: bytes = b"") -> PluginDocument | None:
            self.asked.append(known)
            await asyncio.Event().wait()
            return None

    async with running(Hangs("unix:/hangs"), Scripted("unix:/well")) as world:
        await until_holds(lambda: world.plugins.advertised.serves(R))
        assert [report.answers for report in world.plugins.advertised.reports] == [False, True]
