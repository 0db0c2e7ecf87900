"""Directories watched by inotify, or by polling where the kernel has no inotify instance left.

A process has one DirectoryWatcher with one inotify instance (a user has 128 by default) for all directories.
A directory may be missing, come and go, or be replaced by another of the same name: the watcher finds it
again, and its followers get RESCAN. Polling reports every change as RESCAN.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import AsyncIterator, Generator, Hashable
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Final

from asyncinotify import Event, Inotify, Mask, Watch
from msgspec import Struct, field

from runtime.log import Episode, Log


class Kind(Enum):
    """What happened to an entry of a directory."""

    APPEARED = "appeared"
    VANISHED = "vanished"
    WRITTEN = "written"
    ATTRIBUTES = "attributes"
    RESCAN = "rescan"
    """Anything may have changed: at the start, when the directory comes or goes, when events are lost."""


class Change(Struct, frozen=True):
    """One change: `name` is the entry's file name, empty for RESCAN."""

    kind: Kind
    name: str = ""


def identity_of(directory: Path) -> tuple[int, int] | None:
    """Device and inode of the file at the path; None where it cannot be read."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _signature(directory: Path, *, contents: bool) -> Hashable:
    """Differs after a change of the directory: other entries, or with `contents` other times of entries.

    Names count beside the directory's time of modification, which sysfs does not keep.
    """
    try:
        status = directory.stat()
        with os.scandir(directory) as scanned:
            entries = frozenset((entry.name, _changed(entry) if contents else 0) for entry in scanned)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, entries


def _changed(entry: os.DirEntry[str]) -> int:
    """When a directory's entry was changed; 0 for one that is gone."""
    try:
        return entry.stat(follow_symlinks=False).st_ctime_ns
    except OSError:
        return 0


_log = Log("directory")

_ENTRIES: Final = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE | Mask.MOVED_FROM
_CONTENTS: Final = Mask.CLOSE_WRITE | Mask.ATTRIB
_ITSELF: Final = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
_LOST: Final = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.IGNORED | Mask.UNMOUNT

_PENDING_LIMIT: Final = 4096
"""Changes queued for a busy follower; more become one RESCAN."""


_OF_CONTENTS: Final = frozenset({Kind.WRITTEN, Kind.ATTRIBUTES})
_RESCAN: Final = Change(Kind.RESCAN)


class _Follower(Struct, eq=False):
    """One subscription: its directory, its queued changes, and its inotify watch or last signature.

    `changed`: the last poll found another signature.
    """

    directory: Path
    contents: bool
    pending: deque[Change] = field(default_factory=lambda: deque([_RESCAN]))
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    watch: Watch | None = None
    identity: tuple[int, int] | None = None
    refused: str | None = None
    signature: Hashable = None
    changed: bool = True

    def queue(self, change: Change) -> None:
        if change.kind is Kind.RESCAN or len(self.pending) >= _PENDING_LIMIT:
            self.pending.clear()
            change = _RESCAN
        elif self.pending and self.pending[-1].kind is Kind.RESCAN:
            self.wake.set()
            return
        self.pending.append(change)
        self.wake.set()


class DirectoryWatcher:
    """Watches directories for a whole process: run `run` as an actor, and call `follow` from others."""

    def __init__(
        self,
        *,
        poll_interval: float = 1.0,
        use_inotify: bool = True,
        retry_interval: float = 30.0,
    ) -> None:
        """`poll_interval`: seconds between two polls of missing directories, and of all without inotify;
        `retry_interval`: seconds between two attempts to get an inotify instance.
        """
        self._poll_interval = poll_interval
        self._retry_interval = retry_interval
        self._use_inotify = use_inotify
        self._inotify: Inotify | None = None
        self._followers: set[_Follower] = set()
        self._episode = Episode(_log, "no inotify, polling instead", interval_seconds=poll_interval)

    @property
    def polling_because(self) -> str | None:
        """Why directories are polled; None while inotify works."""
        return self._episode.reason if self._use_inotify else "inotify is switched off"

    async def run(self) -> None:
        """Deliver changes to every follower until cancelled."""
        try:
            while True:
                inotify = self._open()
                if inotify is None:
                    await self._poll_for(self._retry_interval)
                    continue
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._read(inotify))
                    group.create_task(self._poll_for(None))
        finally:
            for follower in self._followers:
                follower.watch = follower.identity = None
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None

    async def follow(self, directory: Path, *, contents: bool = True) -> AsyncIterator[Change]:
        """Every change in `directory`, RESCAN first; a missing directory may appear later.

        Without `contents` only entries that appear and vanish: a follower of /dev would otherwise wake up
        whenever a process closes /dev/null.
        """
        with self._following(directory, contents=contents) as follower:
            while True:
                while follower.pending:
                    yield follower.pending.popleft()
                follower.wake.clear()
                await follower.wake.wait()

    @contextmanager
    def _following(self, directory: Path, *, contents: bool) -> Generator[_Follower]:
        follower = _Follower(directory, contents)
        self._followers.add(follower)
        self._attach(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)
            self._detach(follower)
            self._report()

    def _open(self) -> Inotify | None:
        if self._inotify is None and self._use_inotify:
            try:
                self._inotify = Inotify()
            except OSError as error:
                self._episode.failed(_inotify_advice(error))
                return None
            for follower in self._followers:
                self._attach(follower)
            self._report()
        return self._inotify

    async def _read(self, inotify: Inotify) -> None:
        while True:
            event = await inotify.get()
            self._deliver(event)

    def _deliver(self, event: Event) -> None:
        if Mask.Q_OVERFLOW in event.mask:
            _log.warn("inotify events were lost, every directory is rescanned")
            # The lost events may include the end of a directory, whose watch is then gone.
            for follower in self._followers:
                follower.queue(_RESCAN)
                self._detach(follower)
                self._attach(follower)
            return
        watch = event.watch
        for follower in [f for f in self._followers if f.watch is not None and f.watch is watch]:
            if event.mask & _LOST:
                follower.queue(_RESCAN)
                self._detach(follower)
                self._attach(follower)
            elif event.name is not None:
                kind = _kind(event.mask)
                if kind is not None and (follower.contents or kind not in _OF_CONTENTS):
                    follower.queue(Change(kind, str(event.name)))

    async def _poll_for(self, seconds: float | None) -> None:
        """Poll what inotify does not report, for `seconds` (None: until cancelled)."""
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        while end is None or loop.time() < end:
            for follower in tuple(self._followers):
                self._poll(follower)
            await asyncio.sleep(self._poll_interval)

    def _poll(self, follower: _Follower) -> None:
        """Watch a directory that came, notice one that was replaced, list one that is not watched."""
        if follower.watch is not None:
            if identity_of(follower.directory) != follower.identity:
                follower.queue(_RESCAN)
                self._detach(follower)
                self._attach(follower)
            return
        self._attach(follower)
        if follower.watch is None:
            self._compare(follower)

    def _attach(self, follower: _Follower) -> None:
        if self._inotify is None or follower.watch is not None:
            return
        follower.refused = None
        identity = identity_of(follower.directory)
        if identity is None:
            self._report()
            return
        # MASK_ADD: a directory has one watch, which other followers share with other masks.
        mask = _ENTRIES | _ITSELF | Mask.MASK_ADD | (_CONTENTS if follower.contents else Mask(0))
        try:
            follower.watch = self._inotify.add_watch(follower.directory, mask)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                follower.refused = _inotify_advice(error)
            self._report()
            return
        follower.identity = identity
        follower.queue(_RESCAN)
        self._report()

    def _report(self) -> None:
        """Log when inotify refuses a directory, and when it refuses none any more."""
        if self._inotify is None:
            return
        reasons = sorted({follower.refused for follower in self._followers if follower.refused is not None})
        if reasons:
            self._episode.failed(reasons[0])
        else:
            self._episode.recovered()

    def _detach(self, follower: _Follower) -> None:
        """Remove the follower's watch, unless another follower shares it."""
        watch, follower.watch, follower.identity = follower.watch, None, None
        if watch is None or self._inotify is None or any(f.watch is watch for f in self._followers):
            return
        try:
            self._inotify.rm_watch(watch)
        except OSError as error:
            # EINVAL: the kernel dropped the watch together with its directory.
            if error.errno != errno.EINVAL:
                raise

    def _compare(self, follower: _Follower) -> None:
        signature = _signature(follower.directory, contents=follower.contents)
        changed = signature != follower.signature
        # Once more after a change: a second one within a tick of the file system's clock has the same time.
        if changed or follower.changed:
            follower.queue(_RESCAN)
        follower.signature, follower.changed = signature, changed


def _kind(mask: Mask) -> Kind | None:
    if mask & (Mask.CREATE | Mask.MOVED_TO):
        return Kind.APPEARED
    if mask & (Mask.DELETE | Mask.MOVED_FROM):
        return Kind.VANISHED
    if mask & Mask.CLOSE_WRITE:
        return Kind.WRITTEN
    if mask & Mask.ATTRIB:
        return Kind.ATTRIBUTES
    return None


def _inotify_advice(error: OSError) -> str:
    if error.errno == errno.EMFILE:
        return "no inotify instance is left for this user, raise fs.inotify.max_user_instances"
    if error.errno == errno.ENOSPC:
        return "no inotify watch is left for this user, raise fs.inotify.max_user_watches"
    return error.strerror or str(error)
