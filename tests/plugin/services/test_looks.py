"""When the host is looked at."""

import asyncio
from pathlib import Path

from kubelet.paths import KubeletPaths
from plugin.discovery.host import HostRoot
from plugin.serving.context import Pace, Surroundings
from plugin.serving.pod_resources import PodResources
from plugin.serving.scan_schedule import MOST_ENTRIES, Follow, Looks, Wish
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher


async def test_a_look_that_hangs_while_names_pour_in_is_followed_by_one_at_everything(tmp_path: Path) -> None:
    paths, clock = KubeletPaths(tmp_path), Clock()
    looks = Looks(
        Surroundings(
            host=HostRoot(tmp_path),
            paths=paths,
            watcher=DirectoryWatcher(use_inotify=False),
            pod_resources=PodResources(paths, clock),
            token=lambda: "00000000",
            clock=clock,
            pace=Pace(look_pause=0.001, rescan=60.0),
        )
    )
    wishes: asyncio.Queue[Wish] = asyncio.Queue()
    hanging = asyncio.Event()

    async def look(wish: Wish) -> Follow:
        wishes.put_nowait(wish)
        await hanging.wait()
        return Follow()

    async with asyncio.TaskGroup() as group, asyncio.timeout(20):
        task = group.create_task(looks.run(look, group))
        assert (await wishes.get()).entries is None
        looks.touched("/dev", "a")
        hanging.set()
        assert (await wishes.get()).entries == frozenset({("/dev", "a")})
        hanging.clear()
        looks.touched("/dev", "b")
        await wishes.get()
        names = (f"hostile{n}" * 20 for n in range(100 * MOST_ENTRIES))
        for name in names:
            looks.touched("/dev", name)
        # However many there are, no more are kept than are looked at.
        assert looks.waiting <= MOST_ENTRIES
        hanging.set()
        assert (await wishes.get()).entries is None
        task.cancel()
