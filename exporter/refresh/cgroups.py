"""Pods' cgroups: the removal of one says that its pod has ended, also to a kubelet without the Pods API.

kubelet: a pod that ends leaves List, then its volumes are unmounted, then its cgroup is removed. So a List
called at the removal does not have the pod any more, and one call is enough. Containers' cgroups, inside the
pod's, go before the pod leaves List; they are not watched.

The kernel reports the removal of a cgroup to the watch of the directory above it, in cgroup v1 and v2, and
through read-only mounts. It does not report the end of a watched cgroup itself; DirectoryWatcher notices that
within a second.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from exporter.refresh.protocols import Trigger
from runtime.directory import Change, DirectoryWatcher, Kind
from runtime.log import Episode, Log

_log = Log("cgroups")

_KUBEPODS: Final = re.compile(r"(?:.+-)?kubepods(?:\.slice)?")
"""kubelet: the cgroup of all pods, by the drivers cgroupfs and systemd; --cgroup-root adds a prefix."""
_QOS_CLASS: Final = re.compile(r"(?:.+-)?(?:besteffort|burstable)(?:\.slice)?")
"""kubelet: the cgroups in it that have the pods of a class; pods of class Guaranteed are in it itself."""
_ENTRIES: Final = 4096
"""Entries of a directory that are read."""
_NEAR: Final = 256
"""Directories below the root that are searched, too."""
_SEARCH_INTERVAL: Final = 10.0
"""Seconds between two searches for the cgroup of all pods: the kubelet makes it when it starts."""


def of_pod_cgroups(change: Change) -> Trigger | None:
    """The trigger for a change in a directory of pods' cgroups: what vanishes there is a pod's."""
    return Trigger.CGROUP if change.kind in {Kind.VANISHED, Kind.RESCAN} else None


def find_kubepods(root: Path) -> Path | None:
    """The cgroup of all pods: `root`, a directory in it, or one in these; the nearest, and the first by name.

    In cgroup v1 each controller has one; the kubelet makes and removes pods' cgroups in all of them.
    """
    if _KUBEPODS.fullmatch(root.name):
        return root
    near = tuple(islice(_directories(root), _NEAR))
    for level in (near, (far for directory in near for far in _directories(directory))):
        for directory in level:
            if _KUBEPODS.fullmatch(directory.name):
                return directory
    return None


def _directories(directory: Path) -> Iterator[Path]:
    """Its directories by name; none where it cannot be read."""
    try:
        with os.scandir(directory) as scanned:
            names = [entry.name for entry in islice(scanned, _ENTRIES) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    yield from (directory / name for name in sorted(names))


class PodCgroups:
    """Watches the cgroups of pods below `--cgroup.root`."""

    def __init__(self, root: Path, watcher: DirectoryWatcher) -> None:
        self._root = root
        self._watcher = watcher
        self._kubepods: Path | None = None
        self._missing = Episode(_log, "pods' cgroups are not watched")

    @property
    def words(self) -> str:
        """What is watched, for the list of triggers."""
        if self._kubepods is None:
            return f"pods' cgroups are not watched: there is no kubepods in {self._root}"
        return f"pods' cgroups in {self._kubepods}"

    async def follow(self, request: Callable[[Trigger], None]) -> None:
        """Request a refresh for each pod whose cgroup is removed."""
        kubepods = await self._found()
        followed = set[Path]()
        async with asyncio.TaskGroup() as group:
            async for change in self._watcher.follow(kubepods, contents=False):
                _request(change, request)
                match change.kind:
                    case Kind.RESCAN:
                        found = set(_directories(kubepods))
                    case Kind.APPEARED:  # the directory is not read again: a burst of pods has hundreds
                        found = {kubepods / change.name}
                    case _:
                        continue
                for directory in found - followed:
                    if _QOS_CLASS.fullmatch(directory.name):
                        followed.add(directory)
                        group.create_task(self._follow(directory, request))

    async def _follow(self, directory: Path, request: Callable[[Trigger], None]) -> None:
        async for change in self._watcher.follow(directory, contents=False):
            _request(change, request)

    async def _found(self) -> Path:
        while (found := await asyncio.to_thread(find_kubepods, self._root)) is None:
            self._missing.failed(f"there is no kubepods in {self._root}")
            await asyncio.sleep(_SEARCH_INTERVAL)
        self._missing.recovered()
        self._kubepods = found
        return found


def _request(change: Change, request: Callable[[Trigger], None]) -> None:
    trigger = of_pod_cgroups(change)
    if trigger is not None:
        request(trigger)
