"""When the host is scanned."""

import asyncio
from dataclasses import replace
from pathlib import Path

from harness.served import plugin_context
from harness.waiting import LIMIT
from plugin.serving.context import Pace
from plugin.serving.device_tracker import MAX_ENTRIES, ScanRequest, ScanSchedule, ScanTriggers
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
        assert len(schedule._entries) <= MAX_ENTRIES  # pyright: ignore[reportPrivateUsage]
        hanging.set()
        assert (await requests.get()).entries is None
        task.cancel()
