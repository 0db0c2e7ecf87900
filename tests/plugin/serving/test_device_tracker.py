"""When the host is scanned."""

import asyncio
from pathlib import Path

from kubelet.paths import KubeletPaths
from plugin.discovery.host import HostRoot
from plugin.serving.context import Pace, PluginContext
from plugin.serving.device_tracker import MAX_ENTRIES, ScanRequest, ScanSchedule, ScanTriggers
from plugin.serving.kubelet_state import KubeletState
from plugin.serving.ownership import DeviceOwnership
from plugin.serving.prober import FaultEvents
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher


async def test_many_changes_during_a_scan_that_hangs_cause_one_full_scan(tmp_path: Path) -> None:
    paths, clock = KubeletPaths(tmp_path), Clock()
    schedule = ScanSchedule(
        PluginContext(
            host=HostRoot(tmp_path),
            paths=paths,
            watcher=DirectoryWatcher(use_inotify=False),
            kubelet=KubeletState(paths, clock),
            ownership=DeviceOwnership(KubeletState(paths, clock)),
            fault_events=FaultEvents(lambda _: None),
            token=lambda: "00000000",
            clock=clock,
            pace=Pace(scan_pause=0.001, rescan=60.0),
        )
    )
    requests: asyncio.Queue[ScanRequest] = asyncio.Queue()
    hanging = asyncio.Event()

    async def scan(request: ScanRequest) -> ScanTriggers:
        requests.put_nowait(request)
        await hanging.wait()
        return ScanTriggers()

    async with asyncio.TaskGroup() as group, asyncio.timeout(20):
        task = group.create_task(schedule.run(scan, group))
        assert (await requests.get()).entries is None
        schedule.touched("/dev", "a")
        hanging.set()
        assert (await requests.get()).entries == frozenset({("/dev", "a")})
        hanging.clear()
        schedule.touched("/dev", "b")
        await requests.get()
        names = (f"hostile{n}" * 20 for n in range(100 * MAX_ENTRIES))
        for name in names:
            schedule.touched("/dev", name)
        # The schedule keeps at most as many entries as it scans one by one.
        assert len(schedule._entries) <= MAX_ENTRIES  # pyright: ignore[reportPrivateUsage]
        hanging.set()
        assert (await requests.get()).entries is None
        task.cancel()
