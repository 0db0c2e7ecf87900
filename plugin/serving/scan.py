"""Scans the host for a resource's devices, and follows the directories whose changes call for a scan."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from re import Pattern
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from plugin.config.plan import ResourcePlan
from plugin.devices.device import Device
from plugin.devices.identify import Identifier, IdentityChange
from plugin.devices.topology import Links
from plugin.discovery.glob import compiled
from plugin.discovery.host import HostRoot, os_problem
from plugin.discovery.source import EntryScanner, Findings, Found, RescanNeededError, Scanner
from plugin.discovery.sysfs_tree import numa_nodes
from plugin.serving.probes import asked_at_allocate, questions
from runtime.directory import Change, DirectoryWatcher, Kind

MAX_FOLLOWED: Final = 256
"""Followed directories of one resource; changes in others are found by the next periodic scan."""
MAX_PATTERNS: Final = 32
"""Patterns of one directory; with more, every change in it calls for a scan."""


class ScanResult(Struct, frozen=True):
    """The result of one scan. `left_out`: (path or name, reason) of what cannot be a device.

    `follow`: (host directory, pattern of entries) pairs, and `subsystems`: uevent subsystems, whose changes
    call for another scan. `notes`: why there may be fewer devices than expected.
    """

    devices: tuple[Device, ...]
    left_out: tuple[tuple[str, str], ...]
    follow: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    subsystems: frozenset[str] = frozenset()


class Resolved(Struct, frozen=True):
    """The current state of devices. `faults`: (id, reason) of those that cannot be allocated."""

    devices: tuple[Device, ...]
    faults: tuple[tuple[str, str], ...]


class ScanError(Exception):
    """A scan failed; the message says why."""


class SharedSources:
    """The sources of a plan, shared by the resources of a family: a recent scan serves all of them."""

    def __init__(
        self, plan: ResourcePlan, host: HostRoot, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self.host = host
        self._plan = plan
        self.each = tuple(source.scanner() for source in plan.sources)
        self._steady = steady
        self._lock = threading.Lock()
        self._begun = float("-inf")
        self._findings = (Findings(()),) * len(self.each)

    def scan(self, not_before: float | None = None) -> tuple[Findings, ...]:
        """The findings of each source, from a scan that began at `not_before` (monotonic) or later.

        None: from a new scan. Blocking. Raises ScanError if a source fails.
        """
        with self._lock:
            if not_before is None or self._begun < not_before:
                begun = self._steady()
                try:
                    every = [source.scan(self.host) for source in self.each]
                except OSError as error:
                    raise ScanError(os_problem(error)) from error
                self._findings = tuple(map(_with_objects_of, self._findings, every))
                self._begun = begun
            return self._findings

    def links(self) -> Links:
        """The direct links between the devices of all sources. Blocking."""
        found: dict[str, dict[str, int]] = {}
        for source in self._plan.sources:
            for end, others in source.links(self.host).items():
                found.setdefault(end, {}).update(others)
        return found


def _with_objects_of(before: Findings, now: Findings) -> Findings:
    """The findings `now`, with the objects of `before` that are equal: the devices have those already."""
    known = {item.path or item.name: item for item in before.found}
    found = [old if (old := known.get(item.path or item.name)) == item else item for item in now.found]
    return replace(now, found=tuple(found))


class DeviceScanner:
    """Scans for one resource's devices. Blocking; one call at a time."""

    def __init__(self, plan: ResourcePlan, host: HostRoot, sources: SharedSources | None = None) -> None:
        """`sources`: the plan's sources, if they are shared."""
        self.plan = plan
        self._host = host
        self._sources = sources or SharedSources(plan, host)
        self._probes = [probe for probe in plan.probes if asked_at_allocate(probe)]
        self._identifier = Identifier(plan)
        self._origins: dict[tuple[str, str], Scanner] = {}
        self._entrywise: dict[str, EntryScanner] = {}
        self.links: Links = {}
        """The direct links between devices at the last scan, for `prefer: topology`."""

    def scan(self, not_before: float | None = None) -> ScanResult:
        """All devices, by a scan that began at `not_before` or later. Raises ScanError."""
        found: list[Found] = []
        follow: dict[tuple[str, str], None] = {}
        origins: dict[tuple[str, str], Scanner] = {}
        every = self._sources.scan(not_before)
        for source, findings in zip(self._sources.each, every, strict=True):
            found += findings.found
            if len(every) > 1:
                for item in findings.found:
                    origins.setdefault((item.name, item.path), source)
            follow.update(dict.fromkeys(findings.follow))
        self._origins = origins
        self._entrywise = dict(_entrywise(self._sources.each, every))
        identity = self._identifier.identify(found, self._numa)
        if self.plan.prefer == "topology":
            self.links = self._sources.links()
        return ScanResult(
            identity.devices,
            identity.left_out,
            bounded(follow),
            tuple(dict.fromkeys(note for findings in every for note in findings.notes)),
            frozenset().union(*(findings.subsystems for findings in every)),
        )

    def scan_entries(self, entries: Iterable[tuple[str, str]]) -> IdentityChange | None:
        """The changes of single entries, by (directory, name), of followed directories.

        None if a full scan is needed. Raises ScanError.
        """
        present: dict[tuple[str, str], Found] = {}
        gone: set[tuple[str, str]] = set()
        for directory, name in entries:
            source = self._entrywise.get(directory)
            if source is None:
                return None
            key = (name, f"{directory.rstrip('/')}/{name}")
            try:
                found = source.scan_entry(self._host, directory, name)
            except RescanNeededError:
                return None
            except OSError as error:
                raise ScanError(os_problem(error)) from error
            if found is not None:
                present[key] = found
            elif key in self._identifier:
                gone.add(key)
        before = len(self._identifier)
        change = self._identifier.update(present.values(), gone, self._numa)
        # The notes of a full scan say why there are no devices.
        return None if change is None or not before or not len(self._identifier) else change

    def resolve(self, devices: Sequence[Device]) -> Resolved:
        """The current state of `devices`, for Allocate.

        Since the last scan a device may have vanished, or have got other nodes.
        """
        present: list[Device] = []
        faults: list[tuple[str, str]] = []
        for device in devices:
            now, reason = self._current(device)
            reason = reason or self._unhealthy(now)
            if reason:
                faults.append((device.id, reason))
            else:
                present.append(now)
        return Resolved(tuple(present), tuple(faults))

    def _current(self, device: Device) -> tuple[Device, str]:
        """The current state of a device, and why it is not there; empty if it is."""
        found = device.found
        if found is None:
            return device, self._absent(device.path) if device.path else ""
        source = self._origins.get((found.name, found.path), self._sources.each[0])
        try:
            now = source.resolve(self._host, found)
        except OSError as error:
            return device, os_problem(error)
        if now is None:
            return device, f"{device.path} is not there" if device.path else "not found any more"
        if now.absent:
            return device, now.absent
        if now is found or now == found:
            return device, ""
        return replace(device, path=now.path, attrs=dict(now.attrs), nodes=now.nodes, found=now), ""

    def _unhealthy(self, device: Device) -> str:
        """Why the probes that Allocate runs fail for a device; empty if they pass."""
        for question in questions(self._probes, device, self._host):
            if question.ask is not None and (reason := question.ask()):
                return reason
        return ""

    def _absent(self, path: str) -> str:
        try:
            return "" if self._host.exists(path) else f"{path} is not there"
        except OSError as error:
            return os_problem(error)

    def _numa(self, found: Found) -> tuple[int, ...]:
        return numa_nodes(self._host, found)


def _entrywise(sources: Iterable[Scanner], every: Iterable[Findings]) -> Iterable[tuple[str, EntryScanner]]:
    """The directories that only one source follows, and whose entries it can scan one by one."""
    followed: dict[str, int] = {}
    each = list(zip(sources, every, strict=True))
    for _, findings in each:
        for directory in {directory for directory, _ in findings.follow}:
            followed[directory] = followed.get(directory, 0) + 1
    for source, findings in each:
        if isinstance(source, EntryScanner):
            yield from ((d, source) for d in findings.entrywise if followed.get(d) == 1)


def bounded(follow: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """At most MAX_FOLLOWED directories; more than MAX_PATTERNS patterns of one become `*`."""
    patterns: dict[str, list[str]] = {}
    for directory, pattern in follow:
        if directory in patterns or len(patterns) < MAX_FOLLOWED:
            patterns.setdefault(directory, []).append(pattern)
    return tuple(
        (directory, pattern)
        for directory, several in patterns.items()
        for pattern in (several if len(several) <= MAX_PATTERNS else ["*"])
    )


_COMES_OR_GOES = frozenset({Kind.APPEARED, Kind.VANISHED})

Touched = Callable[[str, str | None], None]
"""Called with a host directory and the changed entry; None: any entry may have changed."""

_Wanted = frozenset[tuple[str, str, bool]]
"""(host directory, pattern, whether writes matter) for one directory of this process."""


class DirectoryFollower:
    """Calls `touched` when a matching entry of a followed directory appears or vanishes."""

    def __init__(self, watcher: DirectoryWatcher, host: HostRoot, touched: Touched) -> None:
        self._watcher = watcher
        self._host = host
        self._touched = touched
        self._tasks: dict[Path, tuple[_Wanted, asyncio.Task[None]]] = {}

    @property
    def followed(self) -> frozenset[Path]:
        """The followed directories, as paths of this process."""
        return frozenset(self._tasks)

    def follow(
        self,
        wanted: Iterable[tuple[str, str]],
        group: asyncio.TaskGroup,
        contents: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Follow exactly these (directory, pattern) pairs from now on. Tasks go to `group`.

        For `contents`, writing an entry is a change too.
        """
        patterns: dict[Path, _Wanted] = {}
        paths: dict[str, Path] = {}
        for pairs, written in ((wanted, False), (contents, True)):
            for directory, pattern in pairs:
                if directory not in paths:
                    paths[directory] = self._path(directory)
                path = paths[directory]
                patterns[path] = patterns.get(path, frozenset()) | {(directory, pattern, written)}
        for path in [p for p, (known, _) in self._tasks.items() if patterns.get(p) != known]:
            self._tasks.pop(path)[1].cancel()
        for path, what in patterns.items():
            if path not in self._tasks:
                self._tasks[path] = what, group.create_task(self._follow(path, what))

    def _path(self, directory: str) -> Path:
        """The path of a host directory for this process, links followed."""
        try:
            return self._host.here(self._host.real(directory))
        except OSError:
            return self._host.here(directory)

    async def _follow(self, path: Path, wanted: _Wanted) -> None:
        # For `files` hidden names count too: `*` means all names.
        what = [(d, None if p == "*" else compiled(p), contents) for d, p, contents in sorted(wanted)]
        contents = any(written for _, _, written in what)
        async for change in self._watcher.follow(path, contents=contents):
            for directory in self._concerned(change, what):
                self._touched(directory, None if change.kind is Kind.RESCAN else change.name)

    def _concerned(self, change: Change, what: Iterable[tuple[str, Pattern[str] | None, bool]]) -> set[str]:
        """The host directories that a change concerns."""
        return {
            directory
            for directory, pattern, contents in what
            if change.kind is Kind.RESCAN
            or (
                (change.kind in _COMES_OR_GOES or (contents and change.kind is Kind.WRITTEN))
                and (pattern is None or pattern.match(change.name))
            )
        }
