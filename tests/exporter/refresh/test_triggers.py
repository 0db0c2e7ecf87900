"""exporter.refresh.triggers: what a change in the kubelet's directories means."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from exporter.refresh.protocols import Trigger
from exporter.refresh.triggers import (
    follow_device_plugins,
    follow_pod_resources,
    of_device_plugins,
    of_pod_resources,
)
from kubelet.paths import KubeletPaths
from runtime.directory import Change, DirectoryWatcher, Kind

CHECKPOINT = "kubelet_internal_checkpoint"


@pytest.mark.parametrize(
    ("kind", "name", "trigger"),
    [
        # An allocation: the temporary file is made, then renamed to the checkpoint.
        (Kind.APPEARED, ".2173202929", Trigger.ALLOCATION),
        (Kind.VANISHED, ".2173202929", None),
        (Kind.WRITTEN, ".2173202929", None),
        (Kind.APPEARED, CHECKPOINT, Trigger.ALLOCATION),
        (Kind.WRITTEN, CHECKPOINT, Trigger.ALLOCATION),
        (Kind.ATTRIBUTES, CHECKPOINT, None),
        # Plugins' sockets and the kubelet's own.
        (Kind.APPEARED, "kubelet.sock", Trigger.REGISTRATION),
        (Kind.VANISHED, "kubelet.sock", Trigger.REGISTRATION),
        (Kind.APPEARED, "held.example_foo.sock", Trigger.REGISTRATION),
        (Kind.VANISHED, "held.example_foo.sock", Trigger.REGISTRATION),
        (Kind.ATTRIBUTES, "held.example_foo.sock", None),
        (Kind.WRITTEN, "DEPRECATION", None),
        # Anything may have happened.
        (Kind.RESCAN, "", Trigger.REGISTRATION),
    ],
)
def test_a_change_in_device_plugins_means(kind: Kind, name: str, trigger: Trigger | None) -> None:
    assert of_device_plugins(Change(kind, name)) is trigger


@pytest.mark.parametrize(
    ("kind", "name", "trigger"),
    [
        (Kind.APPEARED, "kubelet.sock", Trigger.SOCKET),
        (Kind.VANISHED, "kubelet.sock", Trigger.SOCKET),
        (Kind.ATTRIBUTES, "kubelet.sock", None),
        # The socket's temporary name.
        (Kind.APPEARED, "2173202929", None),
        (Kind.VANISHED, "2173202929", None),
        (Kind.WRITTEN, "2173202929", None),
        (Kind.RESCAN, "", Trigger.SOCKET),
    ],
)
def test_a_change_in_pod_resources_means(kind: Kind, name: str, trigger: Trigger | None) -> None:
    assert of_pod_resources(Change(kind, name)) is trigger


@pytest.mark.parametrize("use_inotify", [True, False])
async def test_what_a_kubelet_does_in_its_directories_asks_for_what_it_should(use_inotify: bool) -> None:
    root = Path(tempfile.mkdtemp(prefix="dl", dir="/tmp"))
    paths = KubeletPaths(root)
    for directory in (paths.device_plugins, paths.pod_resources):
        directory.mkdir()
    asked: asyncio.Queue[Trigger] = asyncio.Queue()
    watcher = DirectoryWatcher(poll_interval=0.01, use_inotify=use_inotify)

    async def wait_for(trigger: Trigger) -> None:
        async with asyncio.timeout(20):
            while await asked.get() is not trigger:
                pass

    async def quiet() -> None:
        """Until nothing has been asked for a while."""
        while True:
            try:
                async with asyncio.timeout(0.05):
                    await asked.get()
            except TimeoutError:
                return

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(watcher.run()),
            group.create_task(follow_device_plugins(watcher, paths, asked.put_nowait)),
            group.create_task(follow_pod_resources(watcher, paths, asked.put_nowait)),
        ]
        await quiet()
        temporary = paths.device_plugins / ".123"
        temporary.write_text("{}", encoding="ascii")
        temporary.rename(paths.checkpoint)
        await wait_for(Trigger.ALLOCATION)
        await quiet()
        temporary.write_text('{"more": 1}', encoding="ascii")
        temporary.rename(paths.checkpoint)
        await wait_for(Trigger.ALLOCATION)
        await quiet()
        (paths.device_plugins / "plugin.sock").touch()
        await wait_for(Trigger.REGISTRATION)
        await quiet()
        other_name = paths.pod_resources / "2173202929"
        other_name.touch()
        other_name.rename(paths.pod_resources_socket)
        await wait_for(Trigger.SOCKET)
        for task in tasks:
            task.cancel()
    shutil.rmtree(root)
