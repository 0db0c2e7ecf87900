"""When the host is scanned, and what follows from a scan."""
# pyright: reportPrivateUsage=false

import asyncio
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.served import plugin_context
from harness.waiting import LIMIT
from plugin.config.load import load
from plugin.devices.claims import DeviceClaims, claim_of
from plugin.devices.device import Device
from plugin.devices.identify import IdentityChange
from plugin.devices.inventory import Inventory
from plugin.discovery.source import Found
from plugin.serving.context import Pace
from plugin.serving.device_tracker import MAX_ENTRIES, DeviceTracker, ScanRequest, ScanSchedule, ScanTriggers
from plugin.serving.scan import DeviceScanner
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


CLAIMS = ("", "pci:0000:01:00.0", "pci:0000:02:00.0", "pci:0000:03:00.0")


@settings(max_examples=30, deadline=None)
@given(
    changes=st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.sampled_from(CLAIMS), st.booleans()))
)
def test_partial_scans_claim_what_a_full_scan_would(changes: list[tuple[str, str | None, bool]]) -> None:
    """Each change: a device by name, its claim or None where it is gone, and whether a pod gets it before."""
    configuration = "version: 1\nresources: [{name: a.b/c, discover: [{files: {directory: /d}}]}]\n"
    (plan,) = load(configuration.encode(), "test")
    context = plugin_context(Path("/nowhere"), Path("/nowhere"), Clock(), use_inotify=False)
    inventory = Inventory()
    tracker = DeviceTracker(
        plan,
        context,
        inventory=inventory,
        scanner=DeviceScanner(plan, context.host),
        counters=ResourceCounters(),
        log=ResourceLog(plan.name),
        changed=lambda: None,
    )
    context.ownership.configure([plan])
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
