"""When the host is scanned, and what follows from a scan."""
# pyright: reportPrivateUsage=false

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.callbacks import LIMIT as LIMIT_OF_CALLBACK
from harness.callbacks import longest_callback
from harness.served import plugin_context
from harness.waiting import LIMIT, background, until_holds
from plugin.config.load import load
from plugin.devices.claims import DeviceClaims, claim_of
from plugin.devices.device import Device
from plugin.devices.identify import IdentityChange
from plugin.devices.inventory import Inventory, ListEntry, ObservedDevice
from plugin.discovery.source import Found
from plugin.serving import device_tracker
from plugin.serving.context import Pace
from plugin.serving.device_tracker import MAX_ENTRIES, DeviceTracker, ScanRequest, ScanSchedule, ScanTriggers
from plugin.serving.probes import Answered, ProbeRunner, Question
from plugin.serving.resource import ServedResource
from plugin.serving.scan import DeviceScanner, ScanResult
from plugin.serving.status import ResourceCounters, ResourceLog
from runtime.clock import Clock


async def test_many_changes_during_a_scan_that_hangs_cause_one_full_scan(tmp_path: Path) -> None:
    context = plugin_context(tmp_path, tmp_path, Clock(), use_inotify=False)
    schedule = ScanSchedule(replace(context, pace=Pace(scan_pause=0.001, rescan=60.0)))
    requests: asyncio.Queue[ScanRequest] = asyncio.Queue()
    hanging = asyncio.Event()

    async def scan(request: ScanRequest) -> ScanTriggers:
        requests.put_nowait(request)
        await hanging.wait()
        return ScanTriggers()

    async with asyncio.TaskGroup() as group, asyncio.timeout(LIMIT):
        task = group.create_task(schedule.run(scan, group))
        assert (await requests.get()).entries is None
        schedule.touched("/dev", "a")
        hanging.set()
        assert (await requests.get()).entries == frozenset({("/dev", "a")})
        hanging.clear()
        schedule.touched("/dev", "b")
        await requests.get()
        names = (f"hostile{n}" * 20 for n in range(2 * MAX_ENTRIES))
        for name in names:
            schedule.touched("/dev", name)
        # The schedule keeps at most as many entries as it scans one by one.
        assert len(schedule._entries) <= MAX_ENTRIES
        hanging.set()
        assert (await requests.get()).entries is None
        task.cancel()


CONFIGURATION = "version: 1\nresources: [{name: a.b/c, discover: [{files: {directory: /d}}]}]\n"


def tracker_of(inventory: Inventory, configuration: str = CONFIGURATION) -> DeviceTracker:
    """The tracker of a resource whose kubelet gives no answer."""
    (plan,) = load(configuration.encode(), "test")
    context = plugin_context(Path("/nowhere"), Path("/nowhere"), Clock(), use_inotify=False)
    context.ownership.configure([plan])
    return DeviceTracker(
        plan,
        context,
        inventory=inventory,
        scanner=DeviceScanner(plan, context.host),
        counters=ResourceCounters(),
        log=ResourceLog(plan.name),
        changed=lambda: None,
    )


CLAIMS = ("", "pci:0000:01:00.0", "pci:0000:02:00.0", "pci:0000:03:00.0")


@settings(max_examples=30, deadline=None)
@given(
    changes=st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.sampled_from(CLAIMS), st.booleans()))
)
def test_partial_scans_claim_what_a_full_scan_would(changes: list[tuple[str, str | None, bool]]) -> None:
    """Each change: a device by name, its claim or None where it is gone, and whether a pod gets it before."""
    inventory = Inventory()
    tracker = tracker_of(inventory)
    plan, context = tracker._plan, tracker._context
    tracker._claim()
    full = DeviceClaims()
    for name, claim, held in changes:
        if held:
            inventory.name([name], context.clock.instant())
        found = None if claim is None else Found(name, f"/d/{name}", claim=claim)
        seen = () if found is None else (Device(name, name, f"/d/{name}", found=found),)
        tracker._apply_change(IdentityChange(seen, () if seen else (name,)))
        devices = (*tracker._present.values(), *tracker._kept())
        full.claim(plan.name, {claim_of(device.found) for device in devices if device.found})
        assert context.ownership.claims._owners == full._owners


def devices(names: Iterable[str]) -> tuple[Device, ...]:
    return tuple(Device(name, name, f"/d/{name}", found=Found(name, f"/d/{name}")) for name in names)


class Host:
    """What the next scan finds, instead of a host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.devices: tuple[Device, ...] = ()
        monkeypatch.setattr(DeviceScanner, "scan", self._scan)

    def _scan(self, _not_before: float) -> ScanResult:
        return ScanResult(self.devices, (), (), ())


def essence(advertised: Iterable[ListEntry]) -> list[tuple[str, Device, str, bool]]:
    return [(one.id, one.known.device, one.known.reason, one.known.vanished is None) for one in advertised]


@settings(max_examples=30, deadline=None)
@given(scans=st.lists(st.tuples(st.sets(st.sampled_from("abcdefg")), st.booleans()), max_size=6))
def test_a_scan_applied_in_turns_is_one_applied_at_once(scans: list[tuple[set[str], bool]]) -> None:
    """Each scan: the names of its devices, and whether the list goes to a kubelet before."""

    async def in_turns() -> None:
        for names, shown in scans:
            host.devices = devices(sorted(names))
            for inventory in (made, expected) if shown else ():
                inventory.shown()
            await tracker._scan_everything(0.0)
            expected.survey(map(ObservedDevice, host.devices), tracker._clock.instant())
            assert essence(made.advertised()) == essence(expected.advertised())

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(device_tracker, "AT_ONCE", 2)
        host, made, expected = Host(monkeypatch), Inventory(), Inventory()
        tracker = tracker_of(made)
        asyncio.run(in_turns())


async def test_no_device_is_advertised_before_it_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_tracker, "AT_ONCE", 1)
    host, inventory, advertised = Host(monkeypatch), Inventory(), set[str]()
    tracker = tracker_of(inventory)
    tracker._context.ownership.claims.claim("a.b/other", {"/d/b"})
    host.devices = devices("abc")

    async def probes() -> None:
        while True:
            tracker._health_changed("abc")
            advertised.update(entry.id for entry in inventory.advertised())
            await asyncio.sleep(0)

    async with background(probes()):
        await tracker._scan_everything(0.0)
    assert advertised | {entry.id for entry in inventory.advertised()} == {"a", "c"}


async def test_a_scan_in_turns_runs_each_probe_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_tracker, "AT_ONCE", 1)
    probe = "health: [{exists: '/d/{{ device.name }}.ok'}]"
    configuration = CONFIGURATION.replace("}]}]\n", f"}}], {probe}}}]\n")
    host, inventory, asked = Host(monkeypatch), Inventory(), Counter[str]()
    tracker = tracker_of(inventory, configuration)

    async def run(_self: ProbeRunner, questions: Sequence[Question], answered: Answered) -> None:
        for question in questions:
            asked[question.device] += 1
            answered(question, "")

    monkeypatch.setattr(ProbeRunner, "run", run)
    host.devices = devices("abc")
    async with background(tracker.run()):
        await until_holds(tracker.probed.is_set)
        await until_holds(lambda: len(inventory) == 3)
        assert asked == {"a": 1, "b": 1, "c": 1}
        host.devices = (*host.devices, *devices("d"))
        tracker._schedule.everything()
        await until_holds(lambda: len(inventory) == 4)
    assert asked == {"a": 2, "b": 2, "c": 2, "d": 1}


async def test_no_full_scan_holds_the_event_loop(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"v{number}" for number in range(8300)]
    host = Host(monkeypatch)
    scans = devices(names[:8000]), devices(names[300:])
    host.devices = scans[0]
    (plan,) = load(CONFIGURATION.encode(), "test")
    context = plugin_context(root, root, Clock(), use_inotify=False)
    context.ownership.configure([plan])
    # One pod holds a device: each is compared with it.
    context.ownership.held.learn({("a.b/other", "x"): frozenset({"/d/x"})})
    resource = ServedResource(plan, replace(context, pace=Pace(scan_pause=0.01)))
    with longest_callback(monkeypatch) as longest:
        async with background(resource.run()):
            await until_holds(lambda: len(resource.status().advertised) == 8000)
            first = longest.take()
            host.devices = scans[1]
            resource._tracker._schedule.everything()
            await until_holds(lambda: resource.status().advertised[-1].id == "v8299")
            second = longest.take()
    assert max(first, second)[0] < LIMIT_OF_CALLBACK, (first, second)
