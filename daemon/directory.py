"""Directories followed by inotify, or by polling where the kernel gives no inotify instance.

A process has one DirectoryWatcher with one inotify instance (they are few: 128 a user by default),
whatever number of directories it follows. A directory may be missing, may come and go, may be
replaced by another of the same name: it is found again, and its followers are told to look anew.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from asyncinotify import Event, Inotify, Mask, Watch

from daemon.log import Episode, Log

_log = Log("directory")

_ENTRIES: Final = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE | Mask.MOVED_FROM
_CONTENTS: Final = Mask.CLOSE_WRITE | Mask.ATTRIB
_ITSELF: Final = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
_LOST: Final = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.IGNORED | Mask.UNMOUNT

_PENDING_LIMIT: Final = 4096
"""Changes kept for a follower that is busy; more become one RESCAN."""


class Kind(Enum):
    """What happened to an entry of a directory."""

    APPEARED = "appeared"
    VANISHED = "vanished"
    WRITTEN = "written"
    ATTRIBUTES = "attributes"
    RESCAN = "rescan"
    """Anything may have changed: at the start, when the directory came or went, when events were lost."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change: `name` is the entry's file name, empty for RESCAN."""

    kind: Kind
    name: str = ""


_OF_CONTENTS: Final = frozenset({Kind.WRITTEN, Kind.ATTRIBUTES})
_RESCAN: Final = Change(Kind.RESCAN)
_Listing = dict[str, tuple[int, int, int]]


@dataclass(slots=True, eq=False)
class _Follower:
    """One subscription: what it follows, what it has not been told yet, and how it is followed now."""

    directory: Path
    contents: bool
    pending: deque[Change] = field(default_factory=lambda: deque([_RESCAN]))
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    watch: Watch | None = None
    identity: tuple[int, int] | None = None
    listing: _Listing | None = None

    def tell(self, change: Change) -> None:
        if change.kind is Kind.RESCAN or len(self.pending) >= _PENDING_LIMIT:
            self.pending.clear()
            change = _RESCAN
        elif self.pending and self.pending[-1].kind is Kind.RESCAN:
            self.wake.set()
            return
        self.pending.append(change)
        self.wake.set()


class DirectoryWatcher:
    """Follows directories for a whole process. Run `run()` as an actor; `follow()` from anywhere."""

    def __init__(self, *, poll_interval: float = 1.0, use_inotify: bool = True) -> None:
        """`poll_interval`: seconds between looks at what inotify cannot tell (and at all, without it)."""
        self._poll_interval = poll_interval
        self._use_inotify = use_inotify
        self._inotify: Inotify | None = None
        self._followers: set[_Follower] = set()
        self._episode = Episode(_log, "no inotify, polling instead", interval_seconds=poll_interval)

    @property
    def polling_because(self) -> str | None:
        """Why directories are polled rather than followed by inotify; None while inotify works."""
        return self._episode.reason

    async def run(self) -> None:
        """Deliver changes to every follower until cancelled."""
        try:
            while True:
                inotify = self._open()
                if inotify is None:
                    await self._poll_for(max(self._poll_interval * 30, 30.0))
                    continue
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._read(inotify))
                    group.create_task(self._poll_for(None))
        finally:
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None

    async def follow(self, directory: Path, *, contents: bool = True) -> AsyncIterator[Change]:
        """Every change in `directory`, RESCAN first. A directory that is missing is waited for.

        Without `contents` only what appears and vanishes is told: a follower of /dev would otherwise be
        woken whenever somebody closes /dev/null.
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
            self._release(follower.watch)

    def _open(self) -> Inotify | None:
        if self._inotify is None and self._use_inotify:
            try:
                self._inotify = Inotify()
            except OSError as error:
                self._episode.failed(_inotify_advice(error))
                return None
            self._episode.recovered()
            for follower in self._followers:
                follower.listing = None
                self._attach(follower)
        return self._inotify

    async def _read(self, inotify: Inotify) -> None:
        while True:
            event = await inotify.get()
            self._deliver(event)

    def _deliver(self, event: Event) -> None:
        if Mask.Q_OVERFLOW in event.mask:
            _log.warn("inotify events were lost, looking at every directory anew")
            for follower in self._followers:
                follower.tell(_RESCAN)
            return
        watch = event.watch
        for follower in [f for f in self._followers if f.watch is not None and f.watch is watch]:
            if event.mask & _LOST:
                follower.watch = None
                follower.identity = None
                follower.tell(_RESCAN)
                if Mask.MOVE_SELF in event.mask:
                    self._release(watch)
                self._attach(follower)
            elif event.name is not None:
                kind = _kind(event.mask)
                if kind is not None and (follower.contents or kind not in _OF_CONTENTS):
                    follower.tell(Change(kind, str(event.name)))

    async def _poll_for(self, seconds: float | None) -> None:
        """Look at what inotify does not tell, for `seconds` (None: until cancelled)."""
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        while end is None or loop.time() < end:
            for follower in tuple(self._followers):
                self._look(follower)
            await asyncio.sleep(self._poll_interval)

    def _look(self, follower: _Follower) -> None:
        """One look: attach to a directory that came, notice one that was replaced, list the unwatched."""
        if follower.watch is not None:
            if _identity(follower.directory) != follower.identity:
                self._release(follower.watch)
                follower.watch = None
                follower.tell(_RESCAN)
                self._attach(follower)
            return
        self._attach(follower)
        if follower.watch is None:
            self._compare(follower)

    def _attach(self, follower: _Follower) -> None:
        if self._inotify is None or follower.watch is not None:
            return
        identity = _identity(follower.directory)
        if identity is None:
            return
        # MASK_ADD: a directory has one watch, which other followers may want more of.
        mask = _ENTRIES | _ITSELF | Mask.MASK_ADD | (_CONTENTS if follower.contents else Mask(0))
        try:
            follower.watch = self._inotify.add_watch(follower.directory, mask)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                self._episode.failed(_inotify_advice(error))
            return
        follower.identity = identity
        follower.listing = None
        follower.tell(_RESCAN)

    def _release(self, watch: Watch | None) -> None:
        if watch is None or self._inotify is None or any(f.watch is watch for f in self._followers):
            return
        try:
            self._inotify.rm_watch(watch)
        except OSError as error:
            # EINVAL: the kernel dropped the watch together with its directory.
            if error.errno != errno.EINVAL:
                raise

    @staticmethod
    def _compare(follower: _Follower) -> None:
        new = _list(follower.directory)
        old, follower.listing = follower.listing, new
        if new == old:
            return
        if old is None or new is None:
            follower.tell(_RESCAN)
            return
        for name in old.keys() - new.keys():
            follower.tell(Change(Kind.VANISHED, name))
        for name, facts in new.items():
            if name not in old or old[name][0] != facts[0]:
                follower.tell(Change(Kind.APPEARED, name))
            elif old[name] != facts and follower.contents:
                follower.tell(Change(Kind.WRITTEN, name))


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


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _list(directory: Path) -> _Listing | None:
    found: _Listing = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                found[entry.name] = (status.st_ino, status.st_mtime_ns, status.st_size)
    except OSError:
        return None
    return found


def _inotify_advice(error: OSError) -> str:
    if error.errno == errno.EMFILE:
        return "no inotify instance is left for this user, raise fs.inotify.max_user_instances"
    if error.errno == errno.ENOSPC:
        return "no inotify watch is left for this user, raise fs.inotify.max_user_watches"
    return error.strerror or str(error)
