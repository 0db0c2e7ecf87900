"""exporter.refresh.cgroups: which directories are pods' cgroups; the removal of one causes a refresh."""

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from exporter.refresh import cgroups
from exporter.refresh.cgroups import PodCgroups, find_kubepods, of_pod_cgroups
from exporter.refresh.protocols import Trigger
from harness.waiting import until_holds
from runtime.directory import Change, DirectoryWatcher, Kind

NEVER = 3600.0
"""A poll interval that plays no part in a test: inotify alone must do."""


@pytest.mark.parametrize(
    ("kind", "trigger"),
    [
        (Kind.VANISHED, Trigger.CGROUP),
        (Kind.RESCAN, Trigger.CGROUP),
        (Kind.APPEARED, None),
        (Kind.WRITTEN, None),
        (Kind.ATTRIBUTES, None),
    ],
)
def test_a_change_among_pods_means(kind: Kind, trigger: Trigger | None) -> None:
    assert of_pod_cgroups(Change(kind, "pod1")) is trigger


@pytest.mark.parametrize(
    ("directories", "expected"),
    [
        # cgroup v2 by both drivers, and with a --cgroup-root of the kubelet (kind).
        (["init.scope", "kubepods.slice/kubepods-besteffort.slice", "system.slice/a"], "kubepods.slice"),
        (["docker/a", "kubepods/besteffort"], "kubepods"),
        (["kubelet.slice/kubelet-kubepods.slice"], "kubelet.slice/kubelet-kubepods.slice"),
        # v1: each controller has one.
        (["cpu/kubepods", "memory/kubepods", "memory/user"], "cpu/kubepods"),
        # The nearest: a kubelet in a container has further ones.
        (["a/kubepods", "kubepods.slice"], "kubepods.slice"),
        # Not deeper than that, and no other name.
        (["a/b/kubepods"], None),
        (["kubepods.service", "my.kubepods.slice.d", "notkubepods"], None),
        ([], None),
    ],
)
def test_the_cgroup_of_all_pods_is_found(
    directories: list[str], expected: str | None, tmp_path: Path
) -> None:
    for directory in directories:
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "0-kubepods.slice").touch()
    (tmp_path / "00-kubepods.slice").symlink_to(".", target_is_directory=True)
    assert find_kubepods(tmp_path) == (None if expected is None else tmp_path / expected)
    if expected is not None:
        assert find_kubepods(tmp_path / expected) == tmp_path / expected


def test_a_directory_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert find_kubepods(tmp_path / "missing") is None


class Requests:
    """The refreshes that were asked for."""

    def __init__(self, watch: PodCgroups) -> None:
        self.count = 0
        self.watch = watch

    def request(self, trigger: Trigger) -> None:
        assert trigger is Trigger.CGROUP
        self.count += 1

    async def after_end_of(self, pod: Path) -> None:
        """Remove the pod's cgroup, and wait for the request that follows."""
        before = self.count
        pod.rmdir()
        await until_holds(lambda: self.count > before, f"a request after the end of {pod}")


@asynccontextmanager
async def watching(root: Path, *, poll: float = NEVER) -> AsyncGenerator[Requests]:
    watcher = DirectoryWatcher(poll_interval=poll)
    requests = Requests(PodCgroups(root, watcher))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(watcher.run()),
            group.create_task(requests.watch.follow(requests.request)),
        ]
        yield requests
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize(
    ("besteffort", "burstable"),
    [("besteffort", "burstable"), ("kubepods-besteffort.slice", "kubepods-burstable.slice")],
)
async def test_each_pod_that_ends_causes_a_refresh_whatever_its_class(
    besteffort: str, burstable: str, tmp_path: Path
) -> None:
    kubepods = tmp_path / "kubepods.slice"
    pods = [kubepods / "pod1", kubepods / besteffort / "pod2", kubepods / burstable / "pod3"]
    for pod in pods:
        (pod / "container").mkdir(parents=True)
    async with watching(tmp_path) as requests:
        # The first scan of each directory.
        await until_holds(lambda: requests.count == 3)
        assert requests.watch.words == f"pods' cgroups in {kubepods}"
        for pod in pods:
            (pod / "container").rmdir()
            await requests.after_end_of(pod)
        assert requests.count == 6


async def test_cgroups_that_appear_later_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cgroups, "_SEARCH_INTERVAL", 0.002)
    async with watching(tmp_path, poll=0.005) as requests:
        await until_holds(lambda: "pods' cgroups are not watched" in caplog.text)
        assert requests.watch.words == f"pods' cgroups are not watched: there is no kubepods in {tmp_path}"
        pod = tmp_path / "kubepods" / "burstable" / "pod1"
        # The second time in place of one that was removed.
        for _ in range(2):
            # More often than the watcher scans directories that appear.
            for _ in range(10):
                pod.mkdir(parents=True, exist_ok=True)
                await requests.after_end_of(pod)
            await requests.after_end_of(pod.parent)


async def test_pods_that_appear_do_not_make_the_directory_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubepods = tmp_path / "kubepods"
    kubepods.mkdir()
    async with watching(tmp_path) as requests:
        await until_holds(lambda: requests.count == 1)
        read = list[Path]()
        monkeypatch.setattr(cgroups, "_directories", read.append)
        pods = [kubepods / f"pod{number}" for number in range(100)]
        for pod in pods:
            pod.mkdir()
        # A class that appears is watched for all that: its first scan is a request.
        (kubepods / "burstable").mkdir()
        await until_holds(lambda: requests.count == 2)
        await requests.after_end_of(pods[0])
        assert read == []


def writable_cgroups() -> Path | None:
    """A cgroup hierarchy in which this process may make cgroups."""
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/memory")):
        if (root / "cgroup.procs").exists() and os.access(root, os.W_OK):
            return root
    return None


@pytest.fixture
def hierarchy() -> Iterator[Path]:
    """A cgroup of this test's own."""
    root = writable_cgroups()
    if root is None:
        pytest.skip("no hierarchy of cgroups can be written to")
    try:
        top = Path(tempfile.mkdtemp(prefix="devicelens-test-", dir=root))
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    yield top
    for directory, _, _ in os.walk(top, topdown=False):
        Path(directory).rmdir()


async def test_the_kernel_reports_the_end_of_a_real_cgroup(hierarchy: Path) -> None:
    pod = hierarchy / "kubepods.slice" / "kubepods-besteffort.slice" / "kubepods-besteffort-pod1.slice"
    pod.mkdir(parents=True)
    async with watching(hierarchy) as requests:
        await until_holds(lambda: requests.count == 2)
        await requests.after_end_of(pod)
